"""The hash chain: whatever is done to it is found, named and placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.runtime.chain import GENESIS, Damage, Head, Link, append, first_break, head_of, link_hash


def chain(entries: int) -> list[Link]:
    links: list[Link] = []
    for number in range(1, entries + 1):
        links.append(append(head_of(links), {"act": "vote", "round": number}))
    return links


def renumbered(links: Sequence[Link]) -> list[Link]:
    return [replace(link, sequence=number) for number, link in enumerate(links, start=1)]


def rehashed(links: Sequence[Link]) -> list[Link]:
    made: list[Link] = []
    for link in links:
        made.append(append(head_of(made), link.entry))
    return made


def forged(links: Sequence[Link], number: int) -> Link:
    """An entry that properly follows the one before `number`."""
    return append(head_of(links[: number - 1]), {"act": "vote", "round": 99})


FIVE = chain(5)
HEAD = (head_of(FIVE),)


def found(links: Sequence[Link], known: Sequence[Head] = HEAD) -> tuple[int, Damage]:
    broken = first_break(links, known, at_most=5)
    assert broken is not None
    assert str(broken.sequence) in broken.why
    return broken.sequence, broken.damage


class TestWholeChains:
    @given(st.integers(0, 12), st.data())
    def test_pass_every_head_they_had(self, entries: int, data: st.DataObject) -> None:
        links = chain(entries)
        passed = data.draw(st.integers(0, entries))
        assert first_break(links, [head_of(links[:passed])], at_most=entries) is None

    def test_are_hashed_as_documented(self) -> None:
        # printf '%064d\n{"a":"ü","b":1}' 0 | sha256sum
        known = "71e042d05376acaaf15c30396df7e7c6c8ffa35cf60a4deb9b1a82a3da9fc207"
        assert link_hash(GENESIS, {"b": 1, "a": "ü"}) == known

    def test_begin_at_one_behind_nothing(self) -> None:
        assert (FIVE[0].sequence, FIVE[0].previous) == (1, GENESIS)
        assert head_of([]) == Head(0, GENESIS)


class TestEdits:
    @pytest.mark.parametrize("number", [1, 3, 5])
    def test_of_content(self, number: int) -> None:
        links = FIVE.copy()
        links[number - 1] = replace(links[number - 1], entry={"act": "vote", "round": 7})
        assert found(links) == (number, Damage.EDITED)

    @pytest.mark.parametrize(
        "edited", [replace(FIVE[2], hash="f" * 64), replace(FIVE[2], previous="f" * 64)]
    )
    def test_of_a_hash(self, edited: Link) -> None:
        assert found([*FIVE[:2], edited, *FIVE[3:]]) == (3, Damage.EDITED)

    def test_of_a_number(self) -> None:
        links = [*FIVE[:2], replace(FIVE[2], sequence=9), *FIVE[3:]]
        assert found(links) == (3, Damage.EDITED)

    @pytest.mark.parametrize("number", [1, 3])
    def test_with_a_new_hash_are_seen_by_the_next_entry(self, number: int) -> None:
        links = FIVE.copy()
        links[number - 1] = forged(FIVE, number)
        assert found(links) == (number, Damage.REWRITTEN)

    def test_of_the_last_entry_with_a_new_hash_are_seen_by_the_head(self) -> None:
        assert found([*FIVE[:4], forged(FIVE, 5)]) == (5, Damage.REWRITTEN)

    def test_with_all_hashes_made_to_fit_are_seen_by_the_head(self) -> None:
        links = rehashed([FIVE[0], replace(FIVE[1], entry={"act": "none"}), *FIVE[2:]])
        assert first_break(links) is None
        assert found(links) == (5, Damage.REWRITTEN)
        assert found(links, [head_of(FIVE[:3])]) == (3, Damage.REWRITTEN)
        assert first_break(links, [head_of(FIVE[:1])]) is None


class TestRemovals:
    @pytest.mark.parametrize("number", [1, 3, 4])
    def test_leave_a_gap(self, number: int) -> None:
        links = [link for link in FIVE if link.sequence != number]
        assert found(links) == (number, Damage.REMOVED)

    def test_name_every_entry_that_is_gone(self) -> None:
        broken = first_break([FIVE[0], FIVE[4]])
        assert broken is not None
        assert broken.why == "entries 2 to 4 were removed"

    @pytest.mark.parametrize("number", [1, 3])
    def test_with_new_numbers_are_seen_by_the_head(self, number: int) -> None:
        links = renumbered([link for link in FIVE if link.sequence != number])
        assert found(links) == (number, Damage.REMOVED)

    def test_with_new_numbers_and_no_head_are_seen_and_placed(self) -> None:
        links = renumbered([FIVE[0], FIVE[1], FIVE[3], FIVE[4]])
        assert found(links, ())[0] == 2

    @pytest.mark.parametrize("left", [0, 1, 4])
    def test_of_the_end_are_seen_by_the_head_alone(self, left: int) -> None:
        assert first_break(FIVE[:left]) is None
        assert found(FIVE[:left]) == (left + 1, Damage.CUT_SHORT)


class TestReordering:
    @pytest.mark.parametrize("order", ["13245", "21345", "12354", "13452", "15234", "54321"])
    @pytest.mark.parametrize("numbers", ["kept", "new"])
    def test_is_found_where_it_begins(self, order: str, numbers: str) -> None:
        links = [FIVE[int(number) - 1] for number in order]
        if numbers == "new":
            links = renumbered(links)
        first = next(at for at, number in enumerate(order, start=1) if int(number) != at)
        assert found(links) == (first, Damage.MOVED)

    def test_of_contents_under_the_old_hashes(self) -> None:
        links = FIVE.copy()
        links[1], links[2] = (
            replace(links[1], entry=links[2].entry),
            replace(links[2], entry=links[1].entry),
        )
        assert found(links) == (2, Damage.MOVED)


class TestInsertions:
    @pytest.mark.parametrize("number", [1, 3, 5])
    @pytest.mark.parametrize("numbers", ["kept", "new"])
    def test_of_an_entry_with_a_proper_hash(self, number: int, numbers: str) -> None:
        links = [*FIVE[: number - 1], forged(FIVE, number), *FIVE[number - 1 :]]
        if numbers == "new":
            links = renumbered(links)
        assert found(links) == (number, Damage.INSERTED)

    @pytest.mark.parametrize("number", [1, 3, 5])
    def test_of_an_entry_with_any_hash(self, number: int) -> None:
        fake = Link(number, {"act": "vote"}, "e" * 64, "f" * 64)
        links = renumbered([*FIVE[: number - 1], fake, *FIVE[number - 1 :]])
        assert found(links) == (number, Damage.INSERTED)

    def test_of_a_copy(self) -> None:
        links = renumbered([*FIVE[:3], FIVE[1], *FIVE[3:]])
        assert found(links) == (4, Damage.INSERTED)

    def test_behind_the_end(self) -> None:
        assert found([*FIVE, forged(FIVE, 6)]) == (6, Damage.INSERTED)

    def test_behind_the_end_in_the_wrong_place(self) -> None:
        stray = replace(forged(FIVE, 3), sequence=6)
        assert found([*FIVE, stray]) == (6, Damage.INSERTED)


@given(st.data())
def test_no_single_change_goes_unseen(data: st.DataObject) -> None:
    """Any permutation, loss or repetition of entries that is not the chain itself is a break."""
    picked = data.draw(st.lists(st.sampled_from(FIVE), max_size=7))
    links = data.draw(st.sampled_from([picked, renumbered(picked)]))
    if links != FIVE:
        assert first_break(links, HEAD, at_most=5) is not None
