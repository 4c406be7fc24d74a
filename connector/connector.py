"""``HearthConnector``: vLLM's offloading connector, whose loads may fail without harm."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from .manager import HearthManager
from .offload_spec import engine, make_notices
from .report import HearthWorkerReport
from .scheduler_state import offer_again
from .settings import SPEC_DEFAULTS, read_extra_config
from .transfer import HearthWorker


class HearthConnector(OffloadingConnector):  # type: ignore[misc]  # vLLM is not checked
    """vLLM's scheduler half (chunks, hybrid models, preemption) over HearthFS.

    vLLM's own connector asserts that no load ever fails. Here a failed load is told by ``failed_recving``, and with
    ``kv_load_failure_policy: recompute`` the engine then computes that request.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """
        Raises:
            SettingsError: the extra config is unusable. Everything later is a miss, never an error.
        """
        transfer_config = vllm_config.kv_transfer_config
        _name_our_spec(transfer_config)
        settings, warnings = read_extra_config(transfer_config.kv_connector_extra_config)
        notices = make_notices()
        if role is KVConnectorRole.SCHEDULER:
            for number, warning in enumerate(warnings):
                notices.warn(f"settings {number}", "%s", warning)
            if transfer_config.kv_load_failure_policy != "recompute":
                notices.warn(
                    "policy",
                    "kv_load_failure_policy is %r: a request whose KV cannot be loaded will FAIL. "
                    'Set "kv_load_failure_policy": "recompute" in --kv-transfer-config',
                    transfer_config.kv_load_failure_policy,
                )
        self._computes = False
        with engine(vllm_config, settings, notices):
            super().__init__(vllm_config, role, kv_cache_config)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        _name_our_spec(vllm_config.kv_transfer_config)
        return super().build_prom_metrics(vllm_config, *args, **kwargs)

    @property
    def _manager(self) -> HearthManager:
        manager = self.scheduler.manager
        assert isinstance(manager, HearthManager)
        return manager

    @property
    def _worker(self) -> HearthWorker:
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        assert isinstance(worker, HearthWorker)
        return worker

    # Scheduler side

    def on_new_request(self, request: Any) -> None:
        self._manager.note_prompt(request.request_id, request.num_prompt_tokens)
        super().on_new_request(request)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, HearthWorkerReport):
            self._manager.take_report(report)
        offer_again(self.scheduler, connector_output.failed_recving)
        super().update_connector_output(connector_output)

    # Worker side

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._computes = forward_context.attn_metadata is not None
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if not self._computes:
            self._worker.linger()
        sent, received = self.get_finished(finished_req_ids)
        failed = self._worker.take_failed_requests() & received
        return KVConnectorTransferResults(sent, received, failed)

    def build_connector_worker_meta(self) -> HearthWorkerReport | None:
        if self.connector_worker is None:
            return None
        base = super().build_connector_worker_meta()
        report = HearthWorkerReport() if base is None else HearthWorkerReport(base.completed_jobs, base.transfer_stats)
        self._worker.report_into(report)
        return None if report.is_empty else report


def _name_our_spec(transfer_config: Any) -> None:
    """Adds the keys by which vLLM finds our spec, so that nobody has to write them."""
    transfer_config.kv_connector_extra_config = {**SPEC_DEFAULTS, **transfer_config.kv_connector_extra_config}
