import errno
import struct
import threading

from hearthfs.fuse_client import notifications
from hearthfs.fuse_client.notifier import Notifier


def test_messages_are_as_the_kernel_reads_them() -> None:
    assert notifications.increment_epoch() == struct.pack("<IiQ", 16, 8, 0)
    message = notifications.invalidate_attributes(42)
    assert message == struct.pack("<IiQQqq", 40, 2, 0, 42, -1, 0)


class Kernel:
    """Takes messages; may be held up, may refuse codes."""

    def __init__(self, refuse: int = 0, number: int = errno.EINVAL) -> None:
        self.messages: list[bytes] = []
        self.open = threading.Event()
        self.open.set()
        self.refuse, self.number = refuse, number

    def write(self, message: bytes) -> None:
        self.open.wait(5)
        if struct.unpack_from("<i", message, 4)[0] == self.refuse:
            raise OSError(self.number, "refused")
        self.messages.append(message)


def test_done_is_called_after_the_kernel_took_all_of_it() -> None:
    kernel = Kernel()
    notifier = Notifier(kernel.write)
    notifier.start()
    assert notifier.supports_epoch
    kernel.messages.clear()
    seen: list[list[bytes]] = []
    done = threading.Event()

    def finished() -> None:
        seen.append(list(kernel.messages))
        done.set()

    notifier.submit(names=True, nodeids=[7], done=finished)
    assert done.wait(5)
    notifier.close()
    assert set(seen[0]) == {notifications.invalidate_attributes(7), notifications.increment_epoch()}


def test_what_waits_is_coalesced() -> None:
    kernel = Kernel()
    notifier = Notifier(kernel.write)
    notifier.start()
    kernel.messages.clear()
    kernel.open.clear()
    done = threading.Semaphore(0)
    for _ in range(100):
        notifier.submit(names=True, nodeids=[7, 8], done=done.release)
    kernel.open.set()
    for _ in range(100):
        assert done.acquire(timeout=5)
    notifier.close()
    assert len(kernel.messages) <= 6


def test_kernel_without_epochs_gets_only_inodes() -> None:
    kernel = Kernel(refuse=notifications.NOTIFY_INC_EPOCH)
    notifier = Notifier(kernel.write)
    notifier.start()
    assert not notifier.supports_epoch
    done = threading.Event()
    notifier.submit(names=True, nodeids=[7], done=done.set)
    assert done.wait(5)
    notifier.close()
    assert kernel.messages == [notifications.invalidate_attributes(7)]


def test_inode_that_the_kernel_does_not_know_is_done() -> None:
    kernel = Kernel(refuse=notifications.NOTIFY_INVAL_INODE, number=errno.ENOENT)
    notifier = Notifier(kernel.write)
    notifier.start()
    done = threading.Event()
    notifier.submit(names=False, nodeids=[7], done=done.set)
    assert done.wait(5)
    notifier.close()


def test_after_close_everything_is_done_at_once() -> None:
    notifier = Notifier(Kernel().write)
    notifier.start()
    notifier.close()
    done = threading.Event()
    notifier.submit(names=True, nodeids=[], done=done.set)
    assert done.is_set()
