"""Profiles: the seven versions of the block node API as data, and which one a call uses.

A `Profile` has what differs between versions: the package, the names of codes, and the layout of some messages.

    A0, A, A'       package com.hedera.hapi.block, HAPI 0.54 to 0.62; the specification was written for A
    B0, B1, B2, B   package org.hiero.block.api, block node 0.10 and later; the numbers of codes changed twice

`method_of` parses the `:path` of a call into package and service. `profile_of` chooses the profile: the package shows
whether it is one of the A or of the B. Within these, only the option `profile` can choose; the default is A or B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

AUTO: Final = "auto"
OLD_PACKAGE: Final = "com.hedera.hapi.block"
NEW_PACKAGE: Final = "org.hiero.block.api"
#: A node without any block reports this as its last one: the next is 0.
NO_BLOCK: Final = (1 << 64) - 1
#: In a subscription of B: no end, or a start at the first available block.
OPEN: Final = (1 << 64) - 1
#: The port of all services, and the ports in Helm charts that separate publishing and subscribing.
DEFAULT_PORT: Final = 40840
PUBLISH_PORT: Final = 40984
SUBSCRIBE_PORT: Final = 40980


def block_or_none(number: int | None) -> int | None:
    """A block's number as tables have it: None where the protocol writes NO_BLOCK."""
    return None if number == NO_BLOCK else number


class Service(StrEnum):
    """What a call does; the method's name in `:path`."""

    PUBLISH = "publishBlockStream"
    SUBSCRIBE = "subscribeBlockStream"
    STATUS = "serverStatus"
    #: All others: their messages are kept as they are.
    OTHER = "other"


class Method(NamedTuple):
    """A method of one package."""

    package: str
    service: Service


def method_of(path: str) -> Method | None:
    """The method that `:path` names, `/PACKAGE.SERVICE/METHOD`; None = it is none of the block node's."""
    qualified, _, name = path.removeprefix("/").partition("/")
    package = qualified.rpartition(".")[0]
    if package not in (OLD_PACKAGE, NEW_PACKAGE):
        return None
    return Method(package, Service(name) if name in set(Service) else Service.OTHER)


@dataclass(frozen=True, slots=True)
class Profile:
    """One version of the API: how its messages differ, and what its codes are called."""

    name: str
    package: str
    #: Where and when it was spoken.
    spoken: str
    #: Codes of the node's EndOfStream.
    end_codes: Mapping[int, str] = field(hash=False)
    #: Codes that end a subscription.
    subscribe_codes: Mapping[int, str] = field(hash=False)
    #: Whether the block's acknowledgement is a message within Acknowledgement.
    nested_acknowledgement: bool
    #: Fields of the acknowledgement of a block: its number, then its root hash, then whether it existed.
    acknowledgement_fields: int
    #: Whether a message carries one item, not a set.
    one_item: bool = False
    #: The field of the number in SkipBlock and ResendBlock.
    skip_field: int = 1
    #: Whether a block ends with BlockEnd, else with its proof. (B2 has it since 0.20.)
    block_end: bool = False

    @property
    def state(self) -> str:
        """What carried state has of it: its name."""
        return self.name

    @classmethod
    def from_state(cls, name: str) -> Profile:
        """The profile with this name. ValueError: there is none."""
        if name not in PROFILES:
            raise ValueError(f"no profile is named {name}")
        return PROFILES[name]

    @property
    def new(self) -> bool:
        """Whether it is of the newer package."""
        return self.package == NEW_PACKAGE

    def path(self, service: Service) -> str:
        """`:path` of a service's method. KeyError for OTHER."""
        return f"/{self.package}.{_SERVICES[self.new][service]}/{service}"


_STATUS_SERVICE: Final = "BlockNodeService"
#: The service names, by whether the package is the newer one.
_SERVICES: Final[Mapping[bool, Mapping[Service, str]]] = {
    False: {
        Service.PUBLISH: "BlockStreamService",
        Service.SUBSCRIBE: "BlockStreamService",
        Service.STATUS: _STATUS_SERVICE,
    },
    True: {
        Service.PUBLISH: "BlockStreamPublishService",
        Service.SUBSCRIBE: "BlockStreamSubscribeService",
        Service.STATUS: _STATUS_SERVICE,
    },
}


def _codes(*names: str) -> Mapping[int, str]:
    return MappingProxyType(dict(enumerate(names)))


#: Codes of the publisher's EndStream, the same in all profiles.
PUBLISHER_CODES: Final = _codes("UNKNOWN", "RESET", "TIMEOUT", "ERROR", "TOO_FAR_BEHIND")
_OLD_END: Final = ("UNKNOWN", "SUCCESS", "TIMEOUT", "OUT_OF_ORDER", "BAD_STATE_PROOF", "BEHIND", "INTERNAL_ERROR")
_OLD_SUBSCRIBE: Final = _codes(
    "UNKNOWN",
    "INSUFFICIENT_BALANCE",
    "SUCCESS",
    "INVALID_START_BLOCK_NUMBER",
    "INVALID_END_BLOCK_NUMBER",
    "NOT_AVAILABLE",
)
_NEW_SUBSCRIBE: Final = _codes(
    "UNKNOWN",
    "SUCCESS",
    "INVALID_REQUEST",
    "ERROR",
    "INVALID_START_BLOCK_NUMBER",
    "INVALID_END_BLOCK_NUMBER",
    "NOT_AVAILABLE",
)
_NEW_END: Final = (
    "UNKNOWN",
    "SUCCESS",
    "INVALID_REQUEST",
    "ERROR",
    "TIMEOUT",
    "DUPLICATE_BLOCK",
    "BAD_BLOCK_PROOF",
)

A0: Final = Profile(
    "A0", OLD_PACKAGE, "HAPI 0.54 to 0.55", _codes(*_OLD_END[:6]), _OLD_SUBSCRIBE, True, 3, one_item=True, skip_field=2
)
A: Final = Profile(
    "A",
    OLD_PACKAGE,
    "HAPI 0.56 to 0.60, the specification's own",
    _codes(*_OLD_END, "NOT_AVAILABLE"),
    _OLD_SUBSCRIBE,
    True,
    3,
    skip_field=2,
)
A_PRIME: Final = Profile(
    "A'",
    OLD_PACKAGE,
    "HAPI 0.61 to 0.62",
    _codes(*_OLD_END, "PERSISTENCE_FAILED"),
    _OLD_SUBSCRIBE,
    True,
    3,
    skip_field=2,
)
B0: Final = Profile(
    "B0", NEW_PACKAGE, "block node 0.10", _codes(*_OLD_END, "PERSISTENCE_FAILED"), _OLD_SUBSCRIBE, True, 3
)
#: Codes 3 and 4 have these names since 0.12; 0.11 still had the older ones. Subscriptions of 0.13 and 0.14 end by codes
#: of their own (SUCCESS 1, INVALID_START_BLOCK_NUMBER 2, INVALID_END_BLOCK_NUMBER 3, NOT_AVAILABLE 4), which no
#: profile has.
B1: Final = Profile(
    "B1",
    NEW_PACKAGE,
    "block node 0.11 to 0.14",
    _codes(*_OLD_END[:3], "DUPLICATE_BLOCK", "BAD_BLOCK_PROOF", "BEHIND", "INTERNAL_ERROR", "PERSISTENCE_FAILED"),
    _OLD_SUBSCRIBE,
    False,
    3,
)
B2: Final = Profile(
    "B2",
    NEW_PACKAGE,
    "block node 0.15 to 0.24",
    _codes(*_NEW_END, "BEHIND", "PERSISTENCE_FAILED"),
    _NEW_SUBSCRIBE,
    False,
    2,
    block_end=True,
)
B: Final = Profile(
    "B",
    NEW_PACKAGE,
    "block node 0.25 and later",
    _codes(*_NEW_END, "PERSISTENCE_FAILED"),
    _NEW_SUBSCRIBE,
    False,
    1,
    block_end=True,
)
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in (A0, A, A_PRIME, B0, B1, B2, B)}
)


def profile_of(package: str | None, forced: str | None = None) -> Profile:
    """The profile of a call: `forced` if it is of the call's package, else the package's own.

    A call whose package can't be read takes `forced`, else the newest.
    """
    if forced is not None and (package is None or PROFILES[forced].package == package):
        return PROFILES[forced]
    return A if package == OLD_PACKAGE else B


#: Codes with which a node reports a failure of its own, as it must on all calls.
NODE_ERRORS: Final = frozenset({"ERROR", "INTERNAL_ERROR", "PERSISTENCE_FAILED"})
#: Answers to a header.
DUPLICATE_CODE: Final = "DUPLICATE_BLOCK"
BEHIND_CODE: Final = "BEHIND"
