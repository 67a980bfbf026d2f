"""Finds a task's method: `METHOD` of the module that is named after it.

There is no list here. `wire.task.methods.Method` names the methods, and each name is a module of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from silo_agent.trainer.methods.protocol import Disclosure, Method
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.task.definition import TaskDefinition
from wire.task.methods import Method as MethodName


def method_for(definition: TaskDefinition, silo: str = "") -> Method:
    """The method of a task at a silo, whose name decides what it knows and what it draws."""
    return method_class(definition.method)(definition, silo)


def method_class(name: MethodName) -> type[Method]:
    """The class behind a method's name."""
    module = import_module(f"silo_agent.trainer.methods.{name}")
    return cast(type[Method], module.METHOD)


def any_disclosure(settings: PrivacySettings) -> Disclosure:
    """What some method may release beside the ballots, where nothing is known of the task yet."""
    all_of_them = [method_class(name).disclosure(settings) for name in MethodName]
    return Disclosure(
        how=tuple(sentence for one in all_of_them for sentence in one.how),
        leaves=tuple(sentence for one in all_of_them for sentence in one.leaves),
    )
