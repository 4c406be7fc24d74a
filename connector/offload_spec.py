"""Our ``OffloadingSpec``: what vLLM's connector makes its two halves from."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig

from ..common.errors import NotSupported
from . import metrics
from .breakeven import BreakEven
from .engine_view import identity_of
from .identity import KvIdentity
from .lookups import LookupTable
from .manager import HearthManager
from .notices import Notices
from .pages import PageMover
from .settings import ConnectorSettings
from .storage import Storage
from .transfer import HearthWorker


@dataclasses.dataclass(frozen=True)
class _Engine:
    vllm_config: Any
    settings: ConnectorSettings
    notices: Notices


_engine: contextvars.ContextVar[_Engine] = contextvars.ContextVar("hearthfs_engine")


@contextlib.contextmanager
def engine(vllm_config: Any, settings: ConnectorSettings, notices: Notices) -> Iterator[None]:
    """Within it a spec may be made: vLLM's factory hands a spec only a part of what the engine is."""
    token = _engine.set(_Engine(vllm_config, settings, notices))
    try:
        yield
    finally:
        _engine.reset(token)


def make_notices() -> Notices:
    return Notices(init_logger("vllm.hearthfs"))


class HearthOffloadingSpec(OffloadingSpec):  # type: ignore[misc]  # vLLM is not checked
    """One per process; gives the scheduler its manager, or a worker its mover of pages."""

    def __init__(self, config: OffloadingConfig) -> None:
        """
        Raises:
            NotSupported: made by something else than ``HearthConnector``.
        """
        super().__init__(config)
        context = _engine.get(None)
        if context is None:
            raise NotSupported("HearthOffloadingSpec works under HearthConnector only: kv_connector: HearthConnector")
        self._settings = context.settings
        self._notices = context.notices
        self._identity: KvIdentity = identity_of(context.vllm_config, config, context.settings, context.notices)
        self._storage = Storage(context.settings, context.notices)
        self._storage.start()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - vLLM's signature
        return metrics.definitions()

    def get_manager(self) -> OffloadingManager:
        directories = [self._identity.directory(rank) for rank in self._identity.ranks()]
        storage = self._storage
        table = LookupTable(lambda names: storage.lookup(directories, names), self._settings, self._notices)
        storage.on_change = table.clear
        table.start()
        bytes_per_token = (
            self.config.worker_kv_bytes_per_block * len(directories) / self.config.groups[0].tokens_per_block
        )
        return HearthManager(
            table,
            tuple(group.group_id for group in self.config.groups),
            len(directories),
            self._settings,
            self._notices,
            BreakEven(bytes_per_token, self._settings.min_load_tokens, self._settings.load_when == "always"),
            emit_events=self.kv_events_config.enable_kv_cache_events,
            close_storage=storage.close,
        )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """
        Raises:
            NotSupported: the KV cache is not in this machine's memory.
        """
        for cache in kv_caches.tensors:
            if cache.tensor.device.type != "cpu":
                raise NotSupported(
                    f"HearthConnector moves KV pages in host memory only; these are on {cache.tensor.device}"
                )
        groups = [
            [kv_caches.tensors[ref.tensor_idx].tensor.numpy()[:, : ref.page_size_bytes] for ref in refs]
            for refs in kv_caches.group_data_refs
        ]
        return HearthWorker(
            PageMover(groups, self.blocks_per_chunk),
            self.blocks_per_chunk,
            self._identity,
            self.config.parallel.rank,
            self._settings,
            self._storage,
            self._notices,
        )
