"""The threads kernel against the plain one, its share of the cores, and how it stops."""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny
import torch
from test_kernels import close, plans, rates, start
from test_stacked import both

from fedrepro.core.stack import Stack
from fedrepro.kernels import memory, plain, threads
from fedrepro.kernels.step import Proximal


@pytest.fixture(autouse=True, params=[1, 2, 3])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param  # members' own numbers are no one else's business
    torch.set_num_threads(before)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where the tests themselves run in the background and ignore it."""
    if not hasattr(signal, "pthread_kill"):
        pytest.skip("Windows cannot interrupt a thread that waits")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    """Interrupt the main thread, also while it waits: `_thread.interrupt_main` would only be seen afterwards."""
    main = threading.main_thread().ident
    assert main is not None
    time.sleep(0.2)  # until it waits
    signal.pthread_kill(main, signal.SIGINT)


class TestTrain:
    def test_agrees_with_plain(self) -> None:
        options: dict[str, Any] = {
            "collect": True,
            "moving": True,
            "corrected": True,
            "proximal": Proximal(mu=0.3),
        }
        both(tiny.network("resnet8"), (4, 9, 3), epochs=[2, 1, 3], pad=1, other=threads, **options)

    def test_members_come_back_in_their_order(self) -> None:
        # The second and third train longest and are therefore begun first.
        found = both(tiny.network("mlp"), (4, 9, 12, 5), epochs=[1, 3, 4, 1], other=threads)
        assert len(found.stack) == 4

    def test_a_member_ends_at_the_same_bits_whatever_trains_beside_it(self, cores: int) -> None:
        data, architecture, models = tiny.images(17), tiny.network("resnet8"), start(tiny.network("resnet8"), 2)
        plan, sgd = plans((8, 9)), tiny.Sgd(lr=rates(4), momentum=0.9, weight_decay=0.1)
        found = tiny.train(threads, architecture, models, data, data.labels, plan, sgd, precision="float64")
        torch.set_num_threads(1)
        alone = tiny.train(plain, architecture, models, data, data.labels, plan, sgd, precision="float64")
        torch.set_num_threads(cores)
        if cores < 4:  # so each member has one thread
            assert tiny.same(found.stack, alone.stack)

    def test_members_that_diverge_do_not_stop_the_others(self) -> None:
        data, architecture = tiny.points(17), tiny.network("mlp")
        models, plan = start(architecture, 3), plans((4, 9, 4))
        models.params[1:] = float("nan")
        sgd = tiny.Sgd(lr=rates(4), momentum=0.0, weight_decay=0.0)
        done = tiny.train(threads, architecture, models, data, data.labels, plan, sgd, precision="float64")
        assert done.finite.tolist() == [True, False, False]

    def test_an_error_in_one_member_stops_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data, architecture = tiny.points(8), tiny.network("mlp")
        begun: list[int] = []

        def train(*arguments: Any, before_step: Callable[[], None], **options: Any) -> None:
            begun.append(1)
            if len(begun) == 1:
                raise RuntimeError("no memory left")
            for _ in range(1000):
                before_step()
                time.sleep(0.01)
            pytest.fail("was not stopped")

        monkeypatch.setattr(plain, "train", train)
        sgd = tiny.Sgd(lr=rates(2), momentum=0.0, weight_decay=0.0)
        with pytest.raises(RuntimeError, match="no memory left"):
            tiny.train(threads, architecture, start(architecture, 2), data, data.labels, plans((4, 4)), sgd)

    def test_an_interrupt_ends_it_at_the_next_step(
        self, monkeypatch: pytest.MonkeyPatch, interruptible: None
    ) -> None:
        data, architecture, seen, ended = tiny.points(8), tiny.network("mlp"), list[int](), list[int]()
        numbers = itertools.count()

        def train(*arguments: Any, before_step: Callable[[], None], **options: Any) -> None:
            seen.append(1)
            if next(numbers) == 0:  # once: a second one would interrupt the waiting for the others' end
                press_ctrl_c()
            for _ in range(1000):
                before_step()
                time.sleep(0.01)
            ended.append(1)

        monkeypatch.setattr(plain, "train", train)
        sgd = tiny.Sgd(lr=rates(2), momentum=0.0, weight_decay=0.0)
        with pytest.raises(KeyboardInterrupt):
            tiny.train(threads, architecture, start(architecture, 2), data, data.labels, plans((4, 4)), sgd)
        assert not ended

    def test_members_without_a_step(self) -> None:
        data, architecture = tiny.points(12), tiny.network("mlp")
        models, plan = start(architecture, 3), plans((4, 4, 4), epochs=1)
        plan.mask[1:] = False
        sgd = tiny.Sgd(lr=rates(1), momentum=0.9, weight_decay=0.0)
        one, other = (
            tiny.train(k, architecture, models, data, data.labels, plan, sgd, precision="float64")
            for k in (threads, plain)
        )
        close(one.stack.params, other.stack.params)
        assert torch.equal(one.stack.params[1:], models.params[1:])

    def test_threads_of_the_caller_keep_their_cores(self, cores: int) -> None:
        data, architecture = tiny.points(9), tiny.network("mlp")
        threads.predict(architecture, start(architecture, 2), data, precision="float64")
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [cores]


class TestPredict:
    def test_an_interrupt_leaves_nothing_behind(
        self, cores: int, monkeypatch: pytest.MonkeyPatch, interruptible: None
    ) -> None:
        data, architecture, seen, over = tiny.points(8), tiny.network("mlp"), list[str](), list[str]()
        numbers = itertools.count()
        if cores == 1:
            pytest.skip("on one core it is the caller's own thread")

        def predict(*arguments: Any, before_step: Callable[[], None], **options: Any) -> None:
            seen.append("begun")
            if next(numbers) == 0:
                press_ctrl_c()
            try:
                for _ in range(1000):
                    before_step()
                    time.sleep(0.01)
                over.append("not stopped")
            finally:
                seen.append("ended")

        monkeypatch.setattr(plain, "predict", predict)
        with pytest.raises(KeyboardInterrupt):
            threads.predict(architecture, start(architecture, 2), data)
        assert seen.count("begun") == seen.count("ended")
        assert not over

    def test_agrees_with_plain(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        models = start(architecture, 3)
        for count in (3, 1):
            some = models.take(slice(0, count))
            one, other = (k.predict(architecture, some, data, precision="float64") for k in (threads, plain))
            close(one, other)
            fresh, same = (k.recalibrate(architecture, some, data, precision="float64") for k in (threads, plain))
            close(fresh.buffers, same.buffers)
            assert torch.equal(fresh.counters, same.counters)

    def test_nobody(self) -> None:
        data, architecture = tiny.images(2), tiny.network("resnet8")
        nobody: Stack = start(architecture, 1).take(slice(0, 0))
        assert threads.predict(architecture, nobody, data, precision="float64").shape == (0, 2, tiny.CLASSES)
        assert threads.recalibrate(architecture, nobody, data, precision="float64") is nobody


def test_cores_are_shared_out(cores: int) -> None:
    # (members at once, threads of each) for 1, 2 and 10 members
    expected = {1: [(1, 1)] * 3, 2: [(1, 2), (2, 1), (2, 1)], 3: [(1, 3), (2, 1), (3, 1)]}
    assert [threads.side_by_side(members) for members in (1, 2, 10)] == expected[cores]


def test_where_it_cannot_run_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, cpu = tiny.network("resnet8"), torch.device("cpu")
    assert threads.takes(architecture, cpu, "float64") == ""
    assert "not on cuda" in threads.takes(architecture, torch.device("cuda"), "float32")
    assert "precision must be" in threads.takes(architecture, cpu, "float16")
    monkeypatch.setattr(torch.backends.openmp, "is_available", lambda: False)
    assert "no OpenMP" in threads.takes(architecture, cpu, "float32")
    with pytest.raises(ValueError, match="no OpenMP"):
        threads.predict(architecture, start(architecture, 1), tiny.images(2))


class TestMemory:
    ask = staticmethod(memory.keep_freed_memory.__wrapped__)

    def no_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(memory.os.environ):
            if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")):
                monkeypatch.delenv(name)

    def test_the_users_own_choice_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.no_choice(monkeypatch)
        monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("glibc was asked"))
        assert self.ask() == "memory as MALLOC_ARENA_MAX says"

    def test_other_systems_are_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.no_choice(monkeypatch)
        monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("there is no glibc to ask"))
        assert self.ask() == "memory left to the system, which has no glibc"

    @pytest.mark.parametrize(
        ("most", "said"), [(1 << 62, "freed memory kept"), (32 << 20, "kept"), (0, "took no")]
    )
    def test_options_that_glibc_takes(self, most: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Glibc:
            @staticmethod
            def mallopt(option: int, value: int) -> int:
                assert option in (-1, -2, -3)
                return int(0 < value <= most)

        self.no_choice(monkeypatch)
        monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: Glibc())
        assert said in self.ask()
