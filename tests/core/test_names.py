import pytest

from fedrepro.core.names import LISTED, nearest, pick


class TestNearest:
    def test_a_near_name_or_all(self) -> None:
        assert nearest("fedav", ["fedavg", "fedbe"]) == " (did you mean 'fedavg'?)"
        assert nearest("zzz", ["fedavg", "fedbe"]) == "; there are fedavg, fedbe"

    def test_case_does_not_matter(self) -> None:
        assert nearest("RESNET8", ["convnet", "resnet8"]) == " (did you mean 'resnet8'?)"
        assert nearest("resnet8", ["ConvNet", "ResNet8"]) == " (did you mean 'ResNet8'?)"

    def test_many_names_are_counted_and_none_not_named(self) -> None:
        names = [f"n{number}" for number in range(LISTED + 1)]
        assert nearest("zzz", names) == f"; there are {LISTED + 1} names"
        assert nearest("zzz", names[:LISTED]).endswith(f", n{LISTED - 1}")
        assert nearest("zzz", []) == ""

    @pytest.mark.parametrize(("name", "expected"), [("resnet21", "resnet20"), ("resnet57", "resnet56")])
    def test_of_equally_near_ones_the_one_that_begins_alike(self, name: str, expected: str) -> None:
        depths = [f"resnet{depth}" for depth in (8, 14, 20, 26, 32, 44, 56, 110)]
        assert nearest(name, depths) == f" (did you mean {expected!r}?)"


def test_picking() -> None:
    assert pick("method", "fedavg", {"fedavg": 1, "fedbe": 2}) == 1
    with pytest.raises(ValueError, match=r"unknown method 'fedav' \(did you mean 'fedavg'\?\)"):
        pick("method", "fedav", {"fedavg": 1, "fedbe": 2})
