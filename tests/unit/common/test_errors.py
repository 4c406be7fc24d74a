import errno
import os

import grpc
import pytest
from hearthfs.common import errors
from hearthfs.common.errors import KINDS, HearthError, from_errno, from_rpc_error, to_trailing_metadata


class FailedCall(grpc.RpcError):
    """What a stub raises, as far as it is looked at."""

    def __init__(self, code, details="", metadata=()):
        self._code, self._details, self._metadata = code, details, metadata

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._metadata


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_kind_crosses_the_wire_as_itself(kind):
    sent = kind("what happened")
    received = from_rpc_error(FailedCall(kind.code, str(sent), to_trailing_metadata(sent)), "Lookup")
    assert type(received) is kind
    assert str(received) == "what happened"
    assert received.errno == kind.number
    assert received.retryable == kind.retryable


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_kind_is_an_os_error_with_a_known_errno(kind):
    error = kind("text")
    assert isinstance(error, OSError)
    assert error.errno in errno.errorcode
    assert error.filename is None


def test_the_family_has_every_class_of_the_module_and_distinct_names():
    defined = {
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, HearthError)
    }
    assert defined == KINDS


def test_an_error_without_text_says_its_name():
    assert str(errors.NotEmpty()) == "NotEmpty"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, errors.NotSupported),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidArgument),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.TooBig),
        (grpc.StatusCode.UNKNOWN, errors.Internal),
    ],
)
def test_a_failure_of_grpc_itself_names_the_call(code, kind):
    received = from_rpc_error(FailedCall(code, "details"), "Lookup on 127.0.0.1:1")
    assert type(received) is kind
    assert str(received) == "Lookup on 127.0.0.1:1: details"


def test_an_unknown_kind_from_a_newer_peer_is_judged_by_its_status():
    call = FailedCall(grpc.StatusCode.UNAVAILABLE, "", (("hearth-error", "QuotaOfTheFuture"),))
    assert type(from_rpc_error(call)) is errors.Unavailable


def test_missing_metadata_and_details_are_survived():
    assert type(from_rpc_error(FailedCall(grpc.StatusCode.INTERNAL, None, None))) is errors.Internal


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, errors.NotFound),
        (errno.EEXIST, errors.Exists),
        (errno.ENOSPC, errors.NoSpace),
        (errno.EIO, errors.Unavailable),
        (errno.EINVAL, errors.InvalidArgument),
        (errno.ESTALE, errors.Stale),
        (errno.ENOTEMPTY, errors.NotEmpty),
    ],
)
def test_an_errno_of_a_batch_reply_stands_for_its_kind(number, kind):
    error = from_errno(number)
    assert type(error) is kind
    assert error.errno == number


def test_an_errno_that_no_kind_has_is_still_an_error():
    error = from_errno(errno.EXFULL, "")
    assert type(error) is HearthError
    assert os.strerror(errno.EXFULL)
    assert str(error) == "EXFULL"


def test_only_what_may_pass_by_itself_is_retryable():
    retryable = {name for name, kind in KINDS.items() if kind.retryable}
    assert retryable == {"Busy", "StaleSession", "StaleEpoch", "Unavailable", "DeadlineExceeded"}
