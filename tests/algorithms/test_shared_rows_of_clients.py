"""The images that shared features were made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from factories import first_site, make_client, make_trainer, random_pixels

from fedssl.algorithm import Upload
from fedssl.algorithms.ccl import CCL
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedca import FedCA
from fedssl.core.state.mean import Mean


def test_rows_of_fedca_are_projections_of_the_images_they_name() -> None:
    """Without temporal ensembling, a row is the unit projection of its image after training."""
    trainer = make_trainer("simclr", {"batch": 4})
    algorithm = FedCA(dictionary=8, alpha=0.0, beta=0.0)
    site = first_site(algorithm, trainer)
    client = make_client(trainer, random_pixels(6))
    upload, _ = algorithm.client_update(client, site)
    expected = F.normalize(trainer.embed(client.pixels, "z"), dim=1)
    merged = algorithm.merge(site, [Upload("a", 1.0, upload)], Mean)
    rows = algorithm.shared_rows(merged, client)
    assert rows is not None
    assert sorted(rows.images[:, 0].tolist()) == list(range(6))
    assert torch.allclose(rows.features, expected[rows.images[:, 0]], atol=1e-5)
    assert algorithm.shared_rows(merged, make_client(trainer, random_pixels(6), id="b")) is None
    assert algorithm.shared_rows(site, client) is None


def test_rows_of_ccl_are_projections_of_the_images_they_name() -> None:
    """Each mixture is of one image, so that it is this image."""
    trainer = make_trainer("mocov2", {"batch": 4})
    algorithm = CCL(mix=1, lam=0.0)
    site = first_site(algorithm, trainer)
    client = make_client(trainer, random_pixels(6))
    upload, _ = algorithm.client_update(client, site)
    with trainer.eval_mode() as method:
        expected = F.normalize(method.encode_target(method.clean(client.pixels)), dim=1)
    merged = algorithm.merge(site, [Upload("a", 1.0, upload)], Mean)
    rows = algorithm.shared_rows(merged, client)
    assert rows is not None
    assert torch.allclose(rows.features, expected[rows.images[:, 0]], atol=1e-5)


def test_the_images_of_mixtures() -> None:
    """Each mixture has four different images; a row that was dropped makes them unknown."""
    trainer = make_trainer("mocov2", {"batch": 4})
    algorithm = CCL(mix=4, lam=0.0)
    site = first_site(algorithm, trainer)
    client = make_client(trainer, random_pixels(6))
    upload, _ = algorithm.client_update(client, site)
    merged = dict(algorithm.merge(site, [Upload("a", 1.0, upload)], Mean))
    rows = algorithm.shared_rows(merged, client)
    assert rows is not None
    assert rows.images.shape == (6, 4)
    assert all(len(set(images)) == 4 for images in rows.images.tolist())
    for key in ("features", "owners"):
        value = merged[key]
        assert isinstance(value, torch.Tensor)
        merged[key] = value[1:]
    assert algorithm.shared_rows(merged, client) is None


def test_an_algorithm_that_shares_no_features_has_no_rows() -> None:
    trainer = make_trainer("simclr")
    algorithm = FedAvg()
    client = make_client(trainer, random_pixels(4))
    assert algorithm.shared_rows(first_site(algorithm, trainer), client) is None
