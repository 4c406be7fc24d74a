from hearthfs.common.clock import FakeClock
from hearthfs.connector.notices import Notices
from hearthfs.tests.unit.connector.fakes import Log


def test_one_line_per_kind_and_interval() -> None:
    log, clock = Log(), FakeClock()
    notices = Notices(log, clock, interval_s=10)
    for number in range(5):
        notices.warn("drop", "dropped %d", number)
        notices.warn("load", "failed")
    clock.advance(10)
    notices.warn("drop", "dropped %d", 5)
    assert log.lines == ["HearthFS: dropped 0", "HearthFS: failed", "HearthFS: dropped 5 (and 4 like it before)"]
