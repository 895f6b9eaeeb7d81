"""Comparisons of finished runs: groups of seeds, means, intervals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_messages import raises
from fake_runs import fake_run

from fedssl.core.errors import ConfigError
from fedssl.evaluation.intervals import difference_interval
from fedssl.evaluation.outcomes import OUTCOMES
from fedssl.runs.comparable import check_comparable
from fedssl.runs.compare import (
    Group,
    conclusion,
    count_test_images,
    group_interval,
    group_runs,
    knn_by_round,
    knn_curve,
    paired_difference,
    seed_differences,
    swept_key,
)
from fedssl.runs.summary import RunSummary, summarise


def _groups(*folders: Path) -> list[Group]:
    return group_runs([summarise(folder) for folder in folders])


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path: Path) -> None:
    """Two of four and three of four images are correct: 50% and 75%, and (75 − 50)/√2 = 17.68."""
    groups = _groups(
        fake_run(tmp_path / "a"),
        fake_run(tmp_path / "b", "train.lr=0.01"),
        fake_run(tmp_path / "c", "seed=1", correct=(1, 1, 1, 0)),
    )
    assert [group.label for group in groups] == ["lr 0.004", "lr 0.01"]
    assert [group.seeds for group in groups] == [[0, 1], [0]]
    assert groups[0].mean("linear") == 62.5
    assert groups[0].std("linear") == pytest.approx(17.678, abs=1e-3)
    assert groups[1].std("linear") is None
    assert groups[0].seconds == 6.0


def test_equal_settings_are_labelled_by_what_is_trained(tmp_path: Path) -> None:
    (group,) = _groups(fake_run(tmp_path / "a"), fake_run(tmp_path / "b", "seed=1"))
    assert (group.label, group.values) == ("simclr × fedavg × star", {})


def test_settings_of_one_method_are_not_merged_if_another_method_takes_part(
    tmp_path: Path,
) -> None:
    groups = _groups(
        fake_run(tmp_path / "a", "method.temperature=0.2"),
        fake_run(tmp_path / "b", "method.temperature=0.4"),
        fake_run(tmp_path / "c", "method=byol"),
    )
    assert [group.label for group in groups] == [
        "simclr, temperature 0.2",
        "simclr, temperature 0.4",
        "byol",
    ]


def test_views_of_a_preset_are_named(tmp_path: Path) -> None:
    groups = _groups(
        fake_run(tmp_path / "a", "method.augment=grey"),
        fake_run(tmp_path / "b", "method.augment=xray"),
    )
    assert [group.label for group in groups] == ["views grey", "views xray"]
    assert groups[1].values["method.augment.flip"] == 0.0


def test_views_of_no_preset_have_their_numbers(tmp_path: Path) -> None:
    groups = _groups(
        fake_run(tmp_path / "a", "method.augment=xray", "train.lr=0.01"),
        fake_run(tmp_path / "b", "method.augment=xray", "method.augment.blur_kernel=5"),
        fake_run(tmp_path / "c", "method.augment=xray", "method.augment.flip=1"),
    )
    assert [group.label for group in groups] == [
        "views xray, lr 0.01",
        "flip 0, lr 0.004, blur_kernel 5",
        "flip 1, lr 0.004, no blur_kernel",
    ]


def test_one_setting_of_the_views_is_a_sweep(tmp_path: Path) -> None:
    groups = _groups(
        fake_run(tmp_path / "a", "method.augment=xray"),
        fake_run(tmp_path / "b", "method.augment=xray", "method.augment.flip=1"),
    )
    assert [group.label for group in groups] == ["flip 0", "flip 1"]
    assert swept_key(groups) == "method.augment.flip"


def test_a_run_does_not_count_twice(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path / name) for name in "ab"]
    with raises(ConfigError):
        _groups(*folders)


def test_one_numeric_setting_is_a_sweep(tmp_path: Path) -> None:
    base = fake_run(tmp_path / "a")
    assert swept_key(_groups(base, fake_run(tmp_path / "b", "train.lr=0.01"))) == "train.lr"
    assert swept_key(_groups(base, fake_run(tmp_path / "c", "train.schedule=constant"))) is None
    assert swept_key(_groups(base, fake_run(tmp_path / "d", "guard.clip=true"))) is None
    two = fake_run(tmp_path / "e", "train.lr=0.01", "train.batch=64")
    assert swept_key(_groups(base, two)) is None
    assert swept_key(_groups(base, fake_run(tmp_path / "f", "seed=1"))) is None


def test_the_curve_is_the_mean_and_the_range_over_seeds(tmp_path: Path) -> None:
    """Round 1 was measured for one seed only."""
    (group,) = _groups(
        fake_run(tmp_path / "a", knn=(20.0, 40.0, 50.0)),
        fake_run(tmp_path / "b", "seed=1", knn=(None, 44.0, 60.0)),
    )
    assert knn_curve(group) == [(2, 42.0, 40.0, 44.0), (3, 55.0, 50.0, 60.0)]


def test_the_curve_begins_with_the_untrained_backbone(tmp_path: Path) -> None:
    table = {"this run": {"knn": {"mean": 50.0}}, "random": {"knn": {"mean": 30.0}}}
    (group,) = _groups(fake_run(tmp_path / "a", table=table))
    assert knn_curve(group)[0] == (0, 30.0, 30.0, 30.0)


def test_differences_are_paired_by_test_image(tmp_path: Path) -> None:
    """Seeds are averaged first: the second image is correct for one of two seeds."""
    first, second = _groups(
        fake_run(tmp_path / "a", correct=(1, 1, 0, 0)),
        fake_run(tmp_path / "b", "seed=1", correct=(1, 0, 0, 0)),
        fake_run(tmp_path / "c", "train.lr=0.01", correct=(1, 1, 1, 0)),
        fake_run(tmp_path / "d", "train.lr=0.01", "seed=1", correct=(1, 1, 1, 1)),
    )
    before = torch.tensor([1.0, 0.5, 0.0, 0.0])
    expected = difference_interval(torch.tensor([1.0, 1.0, 1.0, 0.5]), before)
    assert paired_difference(first, second, "linear") == expected
    assert expected.estimate == 50.0
    assert seed_differences(first, second, "linear") == [25.0, 75.0]
    interval = group_interval(first, "linear")
    assert interval is not None
    assert interval.estimate == 37.5
    assert count_test_images(first, "linear") == 4


def test_seeds_of_only_one_group_do_not_count_in_a_difference(tmp_path: Path) -> None:
    """Both groups have seed 1 only: 75% − 25%."""
    first, second = _groups(
        fake_run(tmp_path / "a", correct=(1, 1, 1, 1)),
        fake_run(tmp_path / "b", "seed=1", correct=(1, 0, 0, 0)),
        fake_run(tmp_path / "c", "seed=1", "train.lr=0.01", correct=(1, 1, 1, 0)),
    )
    gain = paired_difference(first, second, "linear")
    assert gain is not None
    assert gain.estimate == 50.0
    assert seed_differences(first, second, "linear") == [50.0]


def test_groups_that_share_no_seed_are_compared_as_they_are(tmp_path: Path) -> None:
    first, second = _groups(
        fake_run(tmp_path / "a", correct=(1, 0, 0, 0)),
        fake_run(tmp_path / "b", "seed=1", "train.lr=0.01", correct=(1, 1, 0, 0)),
    )
    gain = paired_difference(first, second, "linear")
    assert gain is not None
    assert gain.estimate == 25.0
    assert seed_differences(first, second, "linear") == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(10, 40, "better than"), (40, 10, "worse than"), (20, 21, "no clear difference from")],
)
def test_a_difference_is_claimed_only_if_the_interval_excludes_zero(
    before: int, after: int, words: str, tmp_path: Path
) -> None:
    """The first `before` and `after` of 40 images are correct."""
    first, second = _groups(
        fake_run(tmp_path / "a", correct=[1] * before + [0] * (40 - before)),
        fake_run(tmp_path / "b", "train.lr=0.01", correct=[1] * after + [0] * (40 - after)),
    )
    gain = paired_difference(first, second, "linear")
    assert gain is not None
    assert gain.excludes_zero == (words != "no clear difference from")
    assert conclusion(first, second, ["linear"]) == (
        f"lr 0.01: {words} lr 0.004: {2.5 * (after - before):+.1f} points by the linear probe, "
        f"40 test images, 95% interval {gain.low:+.1f} … {gain.high:+.1f} over test images, one seed"
    )


def test_a_conclusion_has_the_difference_of_each_seed(tmp_path: Path) -> None:
    first, second, third = _groups(
        fake_run(tmp_path / "a", correct=(1, 1, 0, 0)),
        fake_run(tmp_path / "b", "seed=1", correct=(1, 0, 0, 0)),
        fake_run(tmp_path / "c", "train.lr=0.01", correct=(1, 1, 1, 0)),
        fake_run(tmp_path / "d", "train.lr=0.01", "seed=1", correct=(1, 0, 0, 0)),
        fake_run(tmp_path / "e", "train.lr=0.02", "seed=2"),
    )
    sentence = conclusion(first, second, ["linear"])
    assert "+12.5 points" in sentence
    assert sentence.endswith("over test images; by seed +25.0, 0.0")
    assert conclusion(first, third, ["knn"]).endswith("over test images; the rows share no seed")


def test_runs_of_earlier_versions_have_no_intervals(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a")
    (folder / OUTCOMES).unlink()
    (group,) = _groups(folder)
    assert paired_difference(group, group, "linear") is None
    assert group_interval(group, "linear") is None
    assert count_test_images(group, "linear") is None
    sentence = conclusion(group, group._replace(label="other"), ["linear"])
    assert sentence.startswith("other: 0.0 points from simclr × fedavg × star by the linear probe")
    assert "without an interval" in sentence


def _runs(*folders: Path) -> list[RunSummary]:
    return [summarise(folder) for folder in folders]


def test_settings_that_only_add_to_the_results_may_differ(tmp_path: Path) -> None:
    base = fake_run(tmp_path / "a")
    other = fake_run(tmp_path / "b", "probe.every=1", "probe.picture=false")
    check_comparable(_runs(base, other))


def test_runs_that_were_measured_in_other_ways_are_rejected(tmp_path: Path) -> None:
    base = fake_run(tmp_path / "a")
    others = [
        fake_run(tmp_path / "k", "probe.k=5"),
        fake_run(tmp_path / "probe", "probe.linear=false"),
        fake_run(tmp_path / "not-set", "probe.lr=0.1"),
        fake_run(tmp_path / "images", test_images="other"),
        fake_run(tmp_path / "labels", labels="other"),
        fake_run(tmp_path / "unlabelled", table={}),
        fake_run(tmp_path / "unfinished", knn=(None,), rounds=1),
    ]
    for other in others:
        with raises(ConfigError):
            check_comparable(_runs(base, other))


def test_one_command_sets_all_differing_settings_of_the_probes(tmp_path: Path) -> None:
    """Unless each run has a setting without a value: a command cannot remove a value."""
    base = fake_run(tmp_path / "a", "probe.batch=64")
    others = [
        fake_run(tmp_path / "b", "probe.batch=64", "probe.k=5", "probe.labels=8"),
        fake_run(tmp_path / "c", "probe.batch=32", "probe.lr=0.1"),
        fake_run(tmp_path / "d", "probe.lr=0.1"),
    ]
    for other in others:
        with raises(ConfigError):
            check_comparable(_runs(base, other))


def test_rounds_that_were_measured_with_other_settings_are_left_out(tmp_path: Path) -> None:
    """The run was measured again with k = 7 after its last round; its log has k = 11."""
    measured = {"knn_settings": {"k": 11}}
    again = fake_run(tmp_path / "a", logged=measured, knn_settings={"k": 7})
    assert knn_by_round(summarise(again)) == {3: 50.0}
    once = fake_run(tmp_path / "b", logged=measured, knn_settings={"k": 11})
    assert knn_by_round(summarise(once)) == {2: 40.0, 3: 50.0}


def test_rounds_that_were_measured_on_other_images_are_left_out(tmp_path: Path) -> None:
    """Test images were replaced after the last round: the log has the first digits of the hash."""
    measured = {"knn_images": "01"}
    again = fake_run(tmp_path / "a", logged=measured, test_images="0201")
    assert knn_by_round(summarise(again)) == {3: 50.0}
    once = fake_run(tmp_path / "b", logged=measured, test_images="0101")
    assert knn_by_round(summarise(once)) == {2: 40.0, 3: 50.0}
