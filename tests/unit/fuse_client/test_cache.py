from hearthfs.common.clock import FakeClock
from hearthfs.fuse_client.cache import NEGATIVE, MetadataCache
from hearthfs.fuse_client.lease import Lease
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import master_pb2 as pb

D, E, F = 10, 20, 30


def entry(inode: int, ctime_ns: int = 1, parents: tuple[int, ...] = (D,)) -> common.Entry:
    return common.Entry(attributes=common.Attributes(inode=inode, ctime_ns=ctime_ns), parents=parents)


def cache(limit: int = 1000) -> tuple[MetadataCache, FakeClock]:
    clock = FakeClock()
    lease = Lease(clock)
    lease.start(5)
    lease.pong(lease.ping())
    return MetadataCache(lease, limit), clock


def test_remembers_what_was_read_while_the_lease_holds() -> None:
    known, clock = cache()
    token = known.token()
    known.read_name(token, D, b"f", F)
    known.read_name(token, D, b"none", NEGATIVE)
    known.read_entry(token, entry(F), D)
    assert known.find(D, b"f") == F
    assert known.find(D, b"none") == NEGATIVE
    assert known.find(D, b"other") is None
    assert known.entry(F) is not None
    clock.advance(5)
    assert known.find(D, b"f") is None
    assert known.entry(F) is None


def test_answer_that_an_invalidation_overtook_is_not_kept() -> None:
    known, _ = cache()
    token = known.token()
    known.invalidate(pb.Invalidation(directory=D, name=b"f"))
    known.read_name(token, D, b"f", NEGATIVE)
    assert not known.read_entry(token, entry(F), D)
    assert known.find(D, b"f") is None
    assert known.entry(F) is None


def test_invalidation_of_one_inode_leaves_the_others() -> None:
    known, _ = cache()
    token = known.token()
    for inode in (F, F + 1):
        known.read_name(token, D, b"%d" % inode, inode)
        known.read_entry(token, entry(inode), D)
    known.invalidate(pb.Invalidation(inode=F, content=True))
    assert known.entry(F) is None
    assert known.entry(F + 1) is not None
    assert known.find(D, b"%d" % F) == F


def test_invalidation_without_a_name_takes_all_names_of_the_directory() -> None:
    known, _ = cache()
    token = known.token()
    known.read_name(token, D, b"a", F)
    known.read_name(token, E, b"a", F)
    known.invalidate(pb.Invalidation(directory=D))
    assert known.find(D, b"a") is None
    assert known.find(E, b"a") == F


def test_own_mutation_makes_lookups_in_flight_stale_but_not_other_mutations() -> None:
    known, _ = cache()
    known.read_name(known.token(), D, b"x", NEGATIVE)  # gives the grant
    lookup = mutation = known.token()
    assert known.made(mutation, D, b"a", entry(F), new=True)
    assert known.made(mutation, D, b"b", entry(F + 1), new=True)
    known.read_name(lookup, D, b"a", NEGATIVE)
    assert known.find(D, b"a") == F
    assert known.find(D, b"b") == F + 1
    assert known.xattrs(F) == {}


def test_what_we_make_in_a_directory_without_grant_is_not_kept() -> None:
    known, _ = cache()
    assert not known.made(known.token(), D, b"a", entry(F))
    assert known.find(D, b"a") is None
    assert known.entry(F) is None


def test_mutation_overtaken_by_another_clients_change_is_not_kept() -> None:
    known, _ = cache()
    known.read_name(known.token(), D, b"x", NEGATIVE)
    token = known.token()
    known.invalidate(pb.Invalidation(directory=D, name=b"a"))
    known.read_name(known.token(), D, b"x", NEGATIVE)  # a new grant does not cure it
    assert not known.made(token, D, b"a", entry(F))
    assert known.find(D, b"a") is None


def test_of_two_replies_about_one_inode_the_later_change_stays() -> None:
    known, _ = cache()
    known.read_entry(known.token(), entry(F, 1), D)
    token = known.token()
    known.modified(token, entry(F, 3))
    known.modified(token, entry(F, 2))
    kept = known.entry(F)
    assert kept is not None
    assert kept.attributes.ctime_ns == 3


def test_removed_name_is_known_not_to_exist() -> None:
    known, _ = cache()
    token = known.token()
    known.read_name(token, D, b"a", F)
    known.read_entry(token, entry(F), D)
    known.unmade(known.token(), D, b"a")
    assert known.find(D, b"a") == NEGATIVE
    assert known.entry(F) is None


def test_clear_also_stops_what_is_on_its_way() -> None:
    known, _ = cache()
    token = known.token()
    known.read_name(token, D, b"a", F)
    known.clear()
    known.read_name(token, D, b"b", F)
    assert known.find(D, b"a") is None
    assert known.find(D, b"b") is None
    assert not known.granted(D)


def test_memory_is_bounded() -> None:
    known, _ = cache(limit=10)
    token = known.token()
    for number in range(100):
        known.read_name(token, D + number % 3, b"%d" % number, 100 + number)
        known.read_entry(token, entry(100 + number), D + number % 3)
        known.read_xattrs(token, 100 + number, {})
    assert len(known) <= 20
    assert known.find(D, b"99") == 199


def directory_entry(inode: int, **fields: int) -> common.Entry:
    return common.Entry(attributes=common.Attributes(inode=inode, mode=0o040755, **fields))


def test_directory_that_we_made_is_known_to_be_empty() -> None:
    known, _ = cache()
    known.read_name(known.token(), D, b"x", NEGATIVE)
    assert known.made(known.token(), D, b"new", directory_entry(E), new=True)
    assert known.find(E, b"anything") == NEGATIVE
    assert known.made(known.token(), E, b"f", entry(F), new=True)
    assert known.find(E, b"f") == F
    known.unmade(known.token(), E, b"f")
    assert known.find(E, b"f") == NEGATIVE
    known.invalidate(pb.Invalidation(directory=E, name=b"other"))
    assert known.find(E, b"other") is None


def test_whole_listing_answers_for_names_that_do_not_exist() -> None:
    known, _ = cache()
    known.read_all_names(known.token(), D, {b"a": F})
    assert known.find(D, b"a") == F
    assert known.find(D, b"b") == NEGATIVE
    token = known.token()
    known.invalidate(pb.Invalidation(directory=D))
    assert known.find(D, b"b") is None
    known.read_all_names(token, D, {b"a": F})
    assert known.find(D, b"b") is None


def test_directory_that_lost_a_name_to_the_limit_is_not_complete() -> None:
    known, _ = cache(limit=10)
    known.read_all_names(known.token(), D, {b"%d" % number: 100 + number for number in range(11)})
    assert known.find(D, b"0") is None


def test_directory_gets_the_time_of_what_was_made_in_it() -> None:
    known, _ = cache()
    known.read_entry(known.token(), directory_entry(D, nlink=2, ctime_ns=5, mtime_ns=5))
    known.made(known.token(), D, b"d", directory_entry(E, ctime_ns=9), new=True)
    changed = known.entry(D)
    assert changed is not None
    assert (changed.attributes.mtime_ns, changed.attributes.ctime_ns, changed.attributes.nlink) == (9, 9, 3)


def page(*inodes: int, no_xattrs: bool = True) -> list[pb.DirectoryEntry]:
    made = [pb.DirectoryEntry(name=b"%d" % inode, inode=inode, cookie=inode, entry=entry(inode)) for inode in inodes]
    for item in made:
        item.entry.no_xattrs = no_xattrs
    return made


def test_a_page_of_a_listing_is_remembered_without_what_moved_meanwhile() -> None:
    known, _ = cache()
    token = known.token()
    known.invalidate(pb.Invalidation(inode=F, content=True))
    known.read_page(token, D, page(F, F + 1))
    assert (known.find(D, b"%d" % F), known.entry(F), known.xattrs(F)) == (F, None, None)
    assert known.entry(F + 1) == page(F + 1)[0].entry
    assert known.xattrs(F + 1) == {}
    assert known.granted(D)
    token = known.token()
    known.invalidate(pb.Invalidation(directory=D, name=b"x"))
    known.read_page(token, D, page(F + 2))
    assert (known.find(D, b"%d" % (F + 2)), known.entry(F + 2)) == (None, None)


def test_attributes_that_may_be_there_are_asked_for() -> None:
    known, _ = cache()
    known.read_page(known.token(), D, page(F, no_xattrs=False))
    assert known.entry(F) is not None
    assert known.xattrs(F) is None
    known.read_entry(known.token(), page(E)[0].entry, D)
    assert known.xattrs(E) == {}
    known.invalidate(pb.Invalidation(inode=E))
    assert known.xattrs(E) is None
