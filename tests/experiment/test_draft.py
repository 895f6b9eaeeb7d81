"""A drafted experiment is valid for every layout, and its values follow from the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssl.data.inspect_folder import FolderSummary
from fedssl.experiment.draft import (
    Choices,
    choose_clients,
    choose_rounds,
    choose_size,
    draft,
    guess_preset,
)
from fedssl.experiment.draft_fit import choose_background
from fedssl.experiment.experiment import Experiment
from fedssl.views import Augment

SUMMARY = FolderSummary(
    layout="clients",
    reason="each folder has its own images",
    test=None,
    groups={"north": 300, "south": 500},
    classes=[],
    images=800,
    outside=0,
    side=70,
    smallest_side=50,
    grey=False,
    transparent=0,
    sampled=200,
    unreadable=0,
    bad_share=0.0,
)


def _drafted(
    summary: FolderSummary = SUMMARY, folder: str = "photos", **choices: object
) -> Experiment:
    text = draft(Path(folder), summary, Choices(**choices))  # type: ignore[arg-type]
    experiment = Experiment.from_toml(text)
    experiment.check()
    return experiment


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("layout", ["clients", "classes", "clients-classes", "flat"])
def test_every_layout_gives_a_valid_experiment(layout: str, gpu: bool) -> None:
    experiment = _drafted(SUMMARY._replace(layout=layout), gpu=gpu)
    assert experiment.data.layout == layout
    assert experiment.partition.brings_clients == layout.startswith("clients")


def test_a_folder_of_clients() -> None:
    """64 is the largest size below the median side of 70; half of 500 images fill a batch of 64."""
    experiment = _drafted()
    assert (experiment.data.path, experiment.data.size) == ("photos", 64)
    assert experiment.train.batch == 64
    assert experiment.method.augment == Augment()


@pytest.mark.parametrize(
    ("side", "gpu", "size"), [(70, False, 64), (70, True, 64), (300, True, 224), (20, False, 20)]
)
def test_the_size_is_at_most_that_of_the_images(side: int, gpu: bool, size: int) -> None:
    assert choose_size(side, gpu) == size


@pytest.mark.parametrize(("images", "rounds"), [(800, 40), (12_800, 20), (1_000_000, 10)])
def test_rounds_bound_the_steps_on_a_cpu(images: int, rounds: int) -> None:
    """4,000 steps of 64 images: 12,800 images are 200 steps a round, so 20 rounds."""
    assert choose_rounds(images, 64) == rounds


def test_labelled_images_are_held_out() -> None:
    """A fifth of 800 images."""
    assert _drafted(SUMMARY._replace(layout="clients-classes")).data.holdout == 160


def test_few_images_are_all_trained_on() -> None:
    assert _drafted(SUMMARY._replace(layout="classes", images=19)).data.holdout == 0


@pytest.mark.parametrize(("images", "clients"), [(1, 1), (3, 1), (5, 2), (11, 5), (10_000, 5)])
def test_simulated_clients_have_two_images_each(images: int, clients: int) -> None:
    summary = SUMMARY._replace(layout="flat", groups={}, images=images)
    assert choose_clients(summary) == clients
    experiment = _drafted(summary)
    assert experiment.clients == clients
    assert experiment.min_uploads == min(2, clients)


def test_files_that_are_no_images_are_allowed() -> None:
    """`bad_share` is 1.5 times the share of 1/16 in the sample: 9.375%, rounded up to 10%."""
    assert _drafted().data.bad_share == 0.01
    assert _drafted(SUMMARY._replace(unreadable=2, bad_share=1 / 16)).data.bad_share == 0.1


def test_test_images_need_no_holdout() -> None:
    summary = SUMMARY._replace(layout="clients-classes", test=Path("photos/test"))
    assert _drafted(summary).data.holdout == 0


@pytest.mark.parametrize(
    ("folder", "grey", "preset"),
    [
        ("photos", False, "photo"),
        ("blood_cells", False, "microscopy"),
        ("Chest-XRays", True, "xray"),
        ("steel_defects", True, "texture"),
        ("scans", True, "grey"),
        ("scans", False, "photo"),
    ],
)
def test_the_views_follow_from_the_name_and_the_colour(
    folder: str, grey: bool, preset: str
) -> None:
    assert guess_preset(Path(folder), SUMMARY._replace(grey=grey))[0] == preset


def test_grey_photos_are_mirrored_and_the_file_names_the_views_for_x_rays() -> None:
    summary = SUMMARY._replace(grey=True)
    assert _drafted(summary).method.augment.flip == 0.5
    assert _drafted(summary, views="xray").method.augment.flip == 0.0
    text = draft(Path("photos"), summary, Choices())
    assert (
        "# Views: the images are grey; use xray, which mirrors nothing, for X-rays, text and digits.\n"
        "# Others: photo, microscopy, xray, texture.\n"
        'augment = "grey"\n'
    ) in text


def test_views_may_be_given() -> None:
    assert _drafted(views="texture").method.augment == Augment.model_validate("texture")


def test_a_path_with_quotes_and_backslashes() -> None:
    for path in ('my "best"\\photos', "Zürich's\tphotos", "two\nlines"):
        assert _drafted(folder=path).data.path == path


@pytest.mark.parametrize(("transparent", "background"), [(95, "black"), (96, "white")])
def test_images_with_transparent_pixels_are_drawn_over_white(
    transparent: int, background: str
) -> None:
    """White is chosen if more than half of the 190 readable images can have transparent pixels."""
    summary = SUMMARY._replace(transparent=transparent, unreadable=10)
    assert _drafted(summary).data.background == background
    reason = f"# {transparent} of 190 sampled images can have transparent pixels."
    assert (reason in draft(Path("photos"), summary, Choices())) == (background == "white")


WIDE = SUMMARY._replace(fit="pad", side=300, lost=0.62, elongated=180)


@pytest.mark.parametrize(
    ("light_edges", "background", "edges"), [(True, "white", "light"), (False, "black", "dark")]
)
def test_wide_images_are_padded_with_the_colour_of_their_edges(
    light_edges: bool, background: str, edges: str
) -> None:
    summary = WIDE._replace(light_edges=light_edges)
    experiment = _drafted(summary)
    assert (experiment.data.fit, experiment.data.background) == ("pad", background)
    assert (
        "size = 64  # pixels a side; half of the images are at least 300 long\n"
        "# Half of the images would lose 62% of their area or more if they\n"
        '# were cropped to squares, which is the default, "crop".\n'
        'fit = "pad"  # all of each image, on a square of the background colour\n'
        f"# Most images have {edges} edges, next to which the border is.\n"
        f'background = "{background}"\n'
    ) in draft(Path("photos"), summary, Choices())


def test_wide_drawings_are_padded_with_the_colour_under_clear_pixels() -> None:
    """Transparent edges have the colour of the background, so they cannot determine it."""
    summary = WIDE._replace(transparent=200, light_edges=False)
    assert choose_background(summary) == (
        "white",
        "200 of 200 sampled images can have transparent pixels",
    )
    experiment = _drafted(summary)
    assert (experiment.data.fit, experiment.data.background) == ("pad", "white")


def test_other_images_are_cropped_without_a_setting() -> None:
    text = draft(Path("photos"), SUMMARY, Choices())
    assert _drafted().data.fit == "crop"
    assert "fit" not in text.split("[partition]")[0]
    assert "background" not in text
