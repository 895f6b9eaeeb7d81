"""Secrets between messages: each phase once, in order, for the newest session; none afterwards."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from error_messages import raises
from secure_parties import Parties

from fedssl.core.errors import ClientError
from fedssl.flower.messages import RoundTask
from fedssl.flower.node_memory import NodeMemory
from fedssl.flower.secure_aggregation import client as protocol
from fedssl.flower.secure_aggregation.client import (
    Advertised,
    ClientState,
    Finished,
    Masked,
    Shared,
)
from fedssl.flower.secure_aggregation.roster import SessionId
from fedssl.flower.secure_aggregation.storage import FILE, SecretFile

pytestmark = pytest.mark.rows("C8")

RUN = "0" * 32


def _file(root: Path, round: int = 3, attempt: int = 0, oldest: int = 0) -> SecretFile:
    task = RoundTask(RUN, "a", round, attempt, (0,) * (attempt + 1), oldest)
    return SecretFile(NodeMemory(root, task), SessionId.of(task))


def _begin(root: Path, round: int = 3, attempt: int = 0) -> Advertised:
    state, _ = protocol.advertise_keys(SessionId(RUN, attempt, round))
    _file(root, round, attempt).begin(state)
    return state


def _states(clients: int = 3) -> dict[type, ClientState]:
    """Return the states of one of some clients in a round."""
    parties = Parties([1] * clients, words=3)
    parties.advertise()
    parties.share()
    masked, _ = protocol.receive_shares(parties.shared["0"], parties.server.ciphertexts_for("0"))
    return {
        Advertised: parties.advertised["0"],
        Shared: parties.shared["0"],
        Masked: masked,
        Finished: Finished(masked.session),
    }


@pytest.mark.parametrize("kind", [Advertised, Shared, Masked])
def test_a_state_is_restored_as_it_was(kind: type, tmp_path: Path) -> None:
    state = _states()[kind]
    file = _file(tmp_path)
    file.begin(state)  # type: ignore[arg-type]
    read = _file(tmp_path).advance(kind, lambda stored: (Finished(stored.session), stored))
    assert read == state


def test_a_phase_cannot_be_repeated(tmp_path: Path) -> None:
    states = _states()
    _file(tmp_path).begin(states[Advertised])  # type: ignore[arg-type]
    _file(tmp_path).advance(Advertised, lambda state: (states[Shared], None))
    with raises(ClientError):
        _file(tmp_path).advance(Advertised, lambda state: (states[Shared], None))
    with raises(ClientError):
        _file(tmp_path).advance(Masked, lambda state: (states[Finished], None))


def test_a_phase_that_fails_may_be_tried_again(tmp_path: Path) -> None:
    """Nothing was sent: a wrong request does not use the phase up."""
    _begin(tmp_path)

    def fail(state: Advertised) -> tuple[ClientState, None]:
        raise ClientError("no")

    with pytest.raises(ClientError):
        _file(tmp_path).advance(Advertised, fail)
    _file(tmp_path).advance(Advertised, lambda state: (Finished(state.session), None))


@pytest.mark.parametrize(("round", "attempt"), [(3, 0), (9, 0)])
def test_a_session_begins_once(round: int, attempt: int, tmp_path: Path) -> None:
    """The same round again, or an earlier one of the same attempt."""
    _begin(tmp_path, round, attempt)
    with raises(ClientError):
        _begin(tmp_path, 3)


def test_a_finished_session_cannot_begin_again(tmp_path: Path) -> None:
    state = _begin(tmp_path)
    _file(tmp_path).finish()
    with raises(ClientError):
        _file(tmp_path).begin(state)


def test_a_restarted_server_repeats_the_round_with_new_keys(tmp_path: Path) -> None:
    first = _begin(tmp_path, 3)
    second = _begin(tmp_path, 3, attempt=1)
    assert first.keys != second.keys
    with raises(ClientError):  # late messages of the earlier attempt
        _file(tmp_path, 3, attempt=0)


def test_secrets_are_removed_by_a_process_that_lost_its_claim(tmp_path: Path) -> None:
    """Training claims the folder again; the secrets of a later session are not removed."""
    _begin(tmp_path, 3)
    file = _file(tmp_path, 3)
    _file(tmp_path, 3)
    file.finish()
    assert "Finished" in file.path.read_text()
    _begin(tmp_path, 4)
    file.finish()
    assert "Advertised" in file.path.read_text()


def test_messages_of_another_round_do_not_change_the_state(tmp_path: Path) -> None:
    _begin(tmp_path, 3)
    with raises(ClientError):
        _file(tmp_path, 4).advance(Advertised, lambda state: (Finished(state.session), None))
    _file(tmp_path, 4).finish()
    assert "Advertised" in (_file(tmp_path, 4).path).read_text()


def test_secrets_are_private_and_removed(tmp_path: Path) -> None:
    state = _begin(tmp_path)
    file = _file(tmp_path)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert state.keys.masking.hex() in file.path.read_text()
    file.finish()
    body = json.loads(json.loads(json.loads(file.path.read_text())["body"])["stored"])
    assert body[1:] == [{}, {}, "Finished", json.dumps([[RUN, 0, 3]]).replace(" ", "")]
    assert [path.name for path in file.path.parent.glob(f"*{FILE}*")] == [FILE]


def test_a_damaged_file_drops_the_client_from_all_rounds(tmp_path: Path) -> None:
    _begin(tmp_path, 3)
    file = _file(tmp_path)
    file.path.write_bytes(file.path.read_bytes()[:-10])
    with raises(ClientError):
        file.advance(Advertised, lambda state: (Finished(state.session), None))
    with raises(ClientError):
        _begin(tmp_path, 4)


# -- a round that is repeated --


def _reveal(root: Path, state: Masked, attempt: int, survivors: list[int]) -> None:
    """Unmask the sum of round 3 in an attempt, where the roster has the same clients."""
    session = SessionId(RUN, attempt, 3)
    _begin(root, 3, attempt)
    file = _file(root, 3, attempt)
    file.advance(Advertised, lambda _: (state._replace(session=session), None))
    file.reveal(lambda masked: (Finished(session), None), survivors)


def test_a_repeated_round_reveals_the_same_sum_only(tmp_path: Path) -> None:
    """The server was restarted after the sum of four uploads was unmasked. The uploads of the
    repeated round are the same, so that the sum of five or of another four would reveal one."""
    state = _states(5)[Masked]
    assert isinstance(state, Masked)
    _reveal(tmp_path, state, 0, [1, 2, 3, 4])
    for attempt, survivors in ((1, [1, 2, 3, 4, 5]), (2, [1, 2, 3]), (3, [1, 2, 3, 5])):
        with raises(ClientError):
            _reveal(tmp_path, state, attempt, survivors)
    _reveal(tmp_path, state, 4, [4, 3, 2, 1])


def test_a_restored_server_cannot_repeat_an_old_round_with_other_clients(tmp_path: Path) -> None:
    """The backup is of round 3; the server had reached round 9, with checkpoints from 8 on."""
    state = _states(5)[Masked]
    assert isinstance(state, Masked)
    _reveal(tmp_path, state, 0, [1, 2, 3, 4, 5])
    _begin(tmp_path, 9)
    session = SessionId(RUN, 0, 9)
    file = _file(tmp_path, 9, oldest=8)
    file.advance(Advertised, lambda _: (state._replace(session=session), None))
    file.reveal(lambda masked: (Finished(session), None), [1, 2, 3, 4, 5])
    with raises(ClientError):
        _reveal(tmp_path, state, 1, [1, 2, 3, 4])
    _reveal(tmp_path, state, 2, [1, 2, 3, 4, 5])


def test_a_repeated_round_reveals_no_sum_with_other_weights(tmp_path: Path) -> None:
    """With another limit on weights, the difference of two sums is the upload of a cut client."""
    state = _states(5)[Masked]
    assert isinstance(state, Masked)
    everyone = [1, 2, 3, 4, 5]
    _reveal(tmp_path, state, 0, everyone)
    capped = state._replace(roster=state.roster._replace(max_weight=2.0))
    with raises(ClientError):
        _reveal(tmp_path, capped, 1, everyone)
    _reveal(tmp_path, state, 2, everyone)


def test_a_client_has_one_identity_in_a_run(tmp_path: Path) -> None:
    identities = set()
    for round in (3, 4):
        state, _ = protocol.advertise_keys(SessionId(RUN, 0, round))
        identities.add(_file(tmp_path, round).begin(state))
    assert len(identities) == 1
    state, _ = protocol.advertise_keys(SessionId(RUN, 0, 3))
    assert _file(tmp_path / "other").begin(state) not in identities


def test_a_damaged_file_of_another_run_prevents_uploads(tmp_path: Path) -> None:
    """The damaged file may have contained the hash of an equal upload."""
    state = _states()[Masked]
    _begin(tmp_path)
    file = _file(tmp_path)
    assert isinstance(state, Masked)
    session = SessionId(RUN, 0, 3)
    file.advance(Advertised, lambda _: (state._replace(session=session), None))
    other = file.path.parent.parent / ("1" * 32) / FILE
    other.parent.mkdir()
    file.record_upload("hash")
    other.write_text("damaged")
    with raises(ClientError):
        file.record_upload("hash")
