"""Coroutines that live and die together."""

from __future__ import annotations

import asyncio

import pytest

from silo_agent.together import together


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise ValueError("the first failure")


class TidyAfterwards:
    """Needs a moment to clean up once it is cancelled."""

    def __init__(self) -> None:
        self.tidied = False

    async def run(self) -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            self.tidied = True


def test_the_first_failure_comes_out_as_itself_and_ends_the_others() -> None:
    tidy = TidyAfterwards()

    async def main() -> None:
        await together(tidy.run(), failing(), forever())

    with pytest.raises(ValueError, match="the first failure"):
        asyncio.run(main())
    assert tidy.tidied


def test_one_that_ends_at_once_does_not_interrupt_anothers_cleaning_up() -> None:
    tidy = TidyAfterwards()

    async def main() -> None:
        work = asyncio.create_task(together(forever(), tidy.run()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.cancel()
        await work

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert tidy.tidied
