# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""No checkpoint that could not be written is lost in silence. The library is scripted; no daemon needed."""

import warnings

import pytest
from dmuon_client import DmuonError, _abi
from dmuon_client.session import Session


class Library:
    """What the library answers: `outcomes` of each checkpoint by name, else DMUON_OK."""

    def __init__(self) -> None:
        self.outcomes: dict[bytes, int] = {}
        self.asked: list[bytes] = []
        self.closed = 0

    def dmuon_open(self, config, client) -> int:
        client._obj.value = 1
        return _abi.DMUON_OK

    def dmuon_save(self, client, name, timeout_ms) -> int:
        return _abi.DMUON_OK

    def dmuon_wait_saved(self, client, name, timeout_ms) -> int:
        self.asked.append(name)
        return self.outcomes.get(name, _abi.DMUON_OK)

    def dmuon_close(self, client) -> None:
        self.closed += 1

    def dmuon_last_error(self) -> bytes:
        return b"no room on the disk"

    def dmuon_status_name(self, status) -> bytes:
        return {_abi.DMUON_CHECKPOINT: b"DMUON_CHECKPOINT", _abi.DMUON_UNAVAILABLE: b"DMUON_UNAVAILABLE",
                _abi.DMUON_DEADLINE_EXCEEDED: b"DMUON_DEADLINE_EXCEEDED"}[status]


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(_abi, "load", lambda: made)
    return made


@pytest.fixture
def session(library):
    made = Session(job="job", rank=0, world_size=1, address=None, max_grad_norm=0.0, missing_gradient=1, timeout=0.05,
                   connect_timeout=1.0, autotune=1)
    yield made
    library.outcomes.clear()
    made.close()


def warnings_of(call) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


def test_a_failed_save_is_told_once_by_whoever_looks_next(session, library):
    session.save("one")
    library.outcomes[b"one"] = _abi.DMUON_CHECKPOINT
    (told,) = warnings_of(session.warn_of_saves)
    assert told == "checkpoint one is not known to exist: DMUON_CHECKPOINT: no room on the disk"
    assert warnings_of(session.warn_of_saves) == []
    assert library.asked == [b"one"]


def test_close_waits_for_all_and_tells_of_those_that_failed(session, library):
    for name in ("one", "two", "three"):
        session.save(name)
    library.outcomes.update({b"one": _abi.DMUON_CHECKPOINT, b"three": _abi.DMUON_DEADLINE_EXCEEDED})
    told = warnings_of(session.close)
    assert [message.split(" is not")[0] for message in told] == ["checkpoint one", "checkpoint three"]
    assert "DMUON_DEADLINE_EXCEEDED" in told[1]
    assert library.closed == 1
    assert warnings_of(session.close) == []


def test_a_service_that_is_gone_is_asked_once_for_all_checkpoints(session, library):
    for name in ("one", "two"):
        session.save(name)
    library.outcomes.update({b"one": _abi.DMUON_UNAVAILABLE, b"two": _abi.DMUON_UNAVAILABLE})
    assert len(warnings_of(session.close)) == 2
    assert library.asked == [b"one"]


def test_who_waits_is_told_and_nobody_else(session, library):
    session.save("one")
    library.outcomes[b"one"] = _abi.DMUON_CHECKPOINT
    with pytest.raises(DmuonError, match="DMUON_CHECKPOINT: no room on the disk") as caught:
        session.wait_saved("one")
    assert caught.value.status == _abi.DMUON_CHECKPOINT
    assert warnings_of(session.warn_of_saves) == []


def test_a_wait_that_is_over_may_be_repeated(session, library):
    session.save("one")
    library.outcomes[b"one"] = _abi.DMUON_DEADLINE_EXCEEDED
    with pytest.raises(DmuonError, match="DMUON_DEADLINE_EXCEEDED"):
        session.wait_saved("one")
    library.outcomes.clear()
    session.wait_saved("one")
    assert warnings_of(session.close) == []


@pytest.mark.parametrize("name", ["a\0b", None, 7])
def test_names_that_c_would_read_differently_are_refused(session, library, name):
    for call in (session.save, session.wait_saved, session.restore):
        with pytest.raises(ValueError, match="checkpoint name .* it must be 1 to 128 of"):
            call(name)
