"""A vLLM engine in a process of its own, spoken to in lines of JSON, so that whoever uses it can also kill it.

    with Engine(model, {"root": ..., "backend": "plain"}) as engine:
        result = engine.generate([1, 2, 3], max_tokens=4)

The child is this same file as a program. vLLM writes to stdout and stderr as it likes; answers come on a pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

START_TIMEOUT_S = 240.0
ORPHAN_GRACE_S = 30.0
BLOCK_TOKENS = 128
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Variables of an engine whose scheduler and worker live in its first process: it starts in half the time, since each
process imports torch and vLLM anew. No engine that serves people is made so."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What one prompt gave."""

    tokens: list[int]
    cached_tokens: int
    """Prompt tokens whose KV was not computed, from whatever cache."""
    first_token_ms: float
    total_ms: float
    gaps: list[float]
    """For each token, how far the best logit was above the second best."""
    best: list[float]
    """For each token, the best one's log probability."""


class EngineDied(Exception):
    """The engine process ended, or did not answer in time."""


class Engine:
    """The parent's side.

    Args:
        model: directory of a model.
        extra_config: for ``HearthConnector``; None for an engine without a connector.
        log: file that takes the child's output.
        options: more arguments for ``vllm.LLM``.
        environment: more variables for the child.
    """

    def __init__(
        self,
        model: Path | str,
        extra_config: Mapping[str, Any] | None,
        log: Path | str,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        transfer: Mapping[str, Any] | None = None,
    ) -> None:
        read_end, write_end = os.pipe()
        order = {
            "model": str(model),
            "extra_config": None if extra_config is None else dict(extra_config),
            "options": dict(options or {}),
            "transfer": dict(transfer or {}),
            "answers": write_end,
        }
        self.log = Path(log)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[write_end],
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT, **(environment or {})},
            )
        os.close(write_end)
        self._answers = read_end
        self._buffer = b""

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Waits until the model is loaded; gives facts about the engine.

        Raises:
            EngineDied: it did not come up.
        """
        return self._answer(timeout_s)

    def generate(
        self, prompt: Sequence[int], max_tokens: int = 1, timeout_s: float = 120.0, **parameters: Any
    ) -> Generation:
        (result,) = self.generate_all([prompt], max_tokens, timeout_s, **parameters)
        return result

    def generate_all(
        self, prompts: Sequence[Sequence[int]], max_tokens: int = 1, timeout_s: float = 120.0, **parameters: Any
    ) -> list[Generation]:
        """Runs the prompts together; times count from the moment they were handed over."""
        order = {"do": "generate", "prompts": [list(p) for p in prompts], "max_tokens": max_tokens, "more": parameters}
        return [Generation(**one) for one in self.ask(order, timeout_s)["results"]]

    def forget(self) -> None:
        """Empties the engine's own prefix cache; files stay."""
        if not self.ask({"do": "forget"})["done"]:
            raise EngineDied("the engine did not reset its prefix cache")

    def metrics(self) -> dict[str, float]:
        """Counters of the engine, "name{labels}" to value."""
        values: dict[str, float] = self.ask({"do": "metrics"})["metrics"]
        return values

    def ask(self, order: Mapping[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EngineDied(self._last_words()) from None
        return self._answer(timeout_s)

    def close(self, timeout_s: float = 20.0) -> float:
        """Ends the engine; gives how many seconds that took. Kills what has not ended in time."""
        begin = time.monotonic()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
        return time.monotonic() - begin

    def kill(self) -> None:
        """The process and its engine core at once."""
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise EngineDied(f"{'gone' if ready else 'silent'}: {self._last_words()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineDied(answer["error"])
        return answer

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1)),
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads of two engines on two cores stop each other
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",  # enforce_eager leaves some helpers compiled: half a minute at the first prompt
}


class _Child:
    """The child's side: one ``vllm.LLM``."""

    def __init__(self, order: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = None
        if order["extra_config"] is not None:
            transfer = KVTransferConfig(
                **{
                    "kv_connector": "HearthConnector",
                    "kv_connector_module_path": "hearthfs.connector",
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute",
                    "kv_connector_extra_config": order["extra_config"],
                    **order["transfer"],
                }
            )
        options = {
            "dtype": "float32",
            "max_model_len": 4096,
            "max_num_batched_tokens": 4096,
            "enforce_eager": True,
            "seed": 0,
            "disable_log_stats": False,
            **order["options"],
        }
        self.llm = LLM(model=order["model"], skip_tokenizer_init=True, kv_transfer_config=transfer, **options)
        self._number = 0

    def facts(self) -> dict[str, Any]:
        import vllm

        config = self.llm.llm_engine.vllm_config
        return {"vllm": vllm.__version__, "block_tokens": config.cache_config.block_size}

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "generate":
            return {"results": self._generate(order)}
        if order["do"] == "forget":
            return {"done": self.llm.reset_prefix_cache()}
        assert order["do"] == "metrics", order
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            if (value := getattr(metric, "value", None)) is not None:
                labels = {k: v for k, v in metric.labels.items() if k not in ("engine", "model_name")}
                name = metric.name + (
                    "{" + ",".join(f"{k}={v}" for k, v in sorted(labels.items())) + "}" if labels else ""
                )
                found[name] = found.get(name, 0) + value
        return {"metrics": found}

    def _generate(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self.llm.llm_engine
        parameters = SamplingParams(
            max_tokens=order["max_tokens"],
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logprobs=2,
            output_kind=RequestOutputKind.CUMULATIVE,
            **order["more"],
        )
        begin = time.perf_counter()
        first: dict[str, float] = {}
        last: dict[str, tuple[float, Any]] = {}
        names = []
        for prompt in order["prompts"]:
            self._number += 1
            names.append(str(self._number))
            engine.add_request(names[-1], {"prompt_token_ids": prompt}, parameters)
        while engine.has_unfinished_requests():
            for output in engine.step():
                now = 1e3 * (time.perf_counter() - begin)
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, now)
                if output.finished:
                    last[output.request_id] = (now, output)
        return [_generation(first.get(name, -1.0), *last[name]) for name in names]


def _generation(first_ms: float, total_ms: float, output: Any) -> dict[str, Any]:
    (completion,) = output.outputs
    tops = [sorted((one.logprob for one in position.values()), reverse=True) for position in completion.logprobs or []]
    return {
        "tokens": list(completion.token_ids),
        "cached_tokens": output.num_cached_tokens or 0,
        "first_token_ms": first_ms,
        "total_ms": total_ms,
        "gaps": [top[0] - top[1] for top in tops],
        "best": [top[0] for top in tops],
    }


def _main() -> None:
    order = json.loads(sys.argv[1])
    with os.fdopen(order["answers"], "w") as answers:
        os.set_inheritable(answers.fileno(), False)

        def answer(value: dict[str, Any]) -> None:
            print(json.dumps(value), file=answers, flush=True)

        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read_orders, args=(lines,), daemon=True).start()
        child = _Child(order)
        answer(child.facts())
        while line := lines.get():
            try:
                answer(child.do(json.loads(line)))
            except Exception as error:
                answer({"error": f"{type(error).__name__}: {error}"})


def _read_orders(lines: queue.SimpleQueue[str]) -> None:
    """Passes orders on; when whoever gave them is gone, ends the engine, at the latest after a grace period."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    time.sleep(ORPHAN_GRACE_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    _main()
