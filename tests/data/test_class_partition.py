import pytest
import torch
from client_parts import all_indices, as_lists, has_fewer_at_each_client, seeded
from error_messages import raises

from fedssl.core.errors import ConfigError, DataError
from fedssl.data import Classes, Dataset, Dirichlet, Images, Skew, earth_movers_distance, histogram


def balanced(classes: int, per_class: int) -> Dataset:
    """Image i is of class i modulo `classes`."""
    labels = torch.arange(classes * per_class) % classes
    names = tuple(map(str, range(classes)))
    return Dataset(Images(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, names))


def counts(partition, data: Dataset, clients: int, seed: int = 0) -> torch.Tensor:
    """Count the images of each class at each client (K, C); check that each is dealt once."""
    parts = partition.split(data, clients, seeded(seed))
    assert all_indices(parts) == list(range(len(data.train)))
    return histogram(parts, data.train.labels, len(data.train.classes))


def test_classes_are_dealt_one_after_the_other():
    """K = 5 clients of l = 2 of C = 10 classes: each class is in one piece."""
    assert counts(Classes(per_client=2), balanced(10, 6), 5).equal(
        6 * torch.eye(5).repeat_interleave(2, 1).long()
    )


def test_one_class_each():
    """K = C, the extreme case: no two clients share a class; the distance is 2 (1 - 1/C)."""
    table = counts(Classes(per_client=1), balanced(10, 6), 10)
    assert table.equal(6 * torch.eye(10).long())
    assert earth_movers_distance(table) == pytest.approx(1.8)
    assert counts(Classes(per_client=1), balanced(10, 6), 20).sum(0).tolist() == [6] * 10


def test_classes_are_cut_when_clients_share_them():
    """K·l/C = 10·2/5 = 4 sets of 3 images; client k holds classes 2k and 2k + 1, modulo 5."""
    table = counts(Classes(per_client=2), balanced(5, 12), 10)
    assert table.unique().tolist() == [0, 3]
    for k in range(10):
        assert set(table[k].nonzero().flatten().tolist()) == {2 * k % 5, (2 * k + 1) % 5}


def test_shuffled_classes_are_as_even():
    plain = counts(Classes(per_client=2), balanced(10, 6), 5, 1)
    shuffled = counts(Classes(per_client=2, shuffled=True), balanced(10, 6), 5, 1)
    assert not shuffled.equal(plain)
    assert shuffled.sum(0).tolist() == [6] * 10
    assert (shuffled > 0).sum(1).tolist() == [2] * 5


def test_a_share_is_of_every_class_a_client_holds():
    """l = 4 of C = 10 classes at 5 clients: K·l/C = 2 sets of 10 images, of which 0.3 are 3."""
    data = balanced(10, 20)
    whole = Classes(per_client=4).split(data, 5, seeded())
    part = Classes(per_client=4, share=0.3).split(data, 5, seeded())
    assert has_fewer_at_each_client(part, whole)
    table = histogram(part, data.train.labels, 10)
    assert table.equal(3 * (histogram(whole, data.train.labels, 10) > 0))
    assert (table > 0).sum(1).tolist() == [4] * 5


@pytest.mark.parametrize(("clients", "per_client"), [(5, 3), (3, 2), (10, 11)])
def test_impossible_deals_of_classes_are_refused(clients, per_client):
    with pytest.raises(
        ConfigError, match=f"{clients} clients × {per_client} classes each cannot be dealt evenly"
    ):
        Classes(per_client=per_client).split(balanced(10, 6), clients, seeded())


def test_dirichlet_keeps_sizes_within_half_and_one_and_a_half():
    for seed in range(5):
        table = counts(Dirichlet(alpha=0.3), balanced(10, 100), 5, seed)
        assert table.sum(0).tolist() == [100] * 10
        assert int(table.sum(1).min()) >= 100
        assert int(table.sum(1).max()) <= 300


def test_a_large_alpha_is_iid_and_a_small_one_is_not():
    even = counts(Dirichlet(alpha=1e7), balanced(10, 100), 5)
    assert int((even - 20).abs().max()) <= 1
    assert earth_movers_distance(even) < 0.1
    assert earth_movers_distance(counts(Dirichlet(alpha=0.02), balanced(10, 100), 5)) > 1.2


def test_dirichlet_shares_have_the_right_spread():
    """A share of Dirichlet(α) over K has mean 1/K and variance (1/K)(1 - 1/K) / (Kα + 1).

    With α = 5 and K = 4 no draw is rejected, so retries do not change the distribution.
    """
    data = balanced(10, 200)
    tables = [counts(Dirichlet(alpha=5.0), data, 4, seed) for seed in range(40)]
    shares = torch.stack(tables).flatten() / 200
    assert float(shares.mean()) == pytest.approx(1 / 4)
    assert float(shares.var()) == pytest.approx(1 / 4 * 3 / 4 / 21, rel=0.1)


def test_dirichlet_gives_up_and_names_the_way_out():
    with raises(ConfigError):
        Dirichlet(alpha=0.02).split(balanced(10, 100), 20, seeded())


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 1.0, 1e6])
def test_balanced_dirichlet_gives_equal_sizes(alpha):
    table = counts(Dirichlet(alpha=alpha, balanced=True), balanced(10, 31), 20)
    assert table.sum(0).tolist() == [31] * 10
    assert table.sum(1).tolist() == [16] * 10 + [15] * 10


def test_balanced_dirichlet_is_skewed_by_alpha():
    data = balanced(10, 200)

    def distance(alpha):
        return earth_movers_distance(counts(Dirichlet(alpha=alpha, balanced=True), data, 10))

    assert distance(0.05) > 1.1
    assert 0.4 < distance(1.0) < 0.9
    assert distance(1e6) < 0.3


def test_skew_of_0_and_1():
    """β = 0: sorted blocks, so 5 clients of 10 classes hold two each. β = 1: dealt uniformly."""
    data = balanced(10, 50)
    assert counts(Skew(beta=0), data, 5).equal(50 * torch.eye(5).repeat_interleave(2, 1).long())
    assert earth_movers_distance(counts(Skew(beta=1), data, 5)) < 0.4


def test_skew_mixes_both_parts_in_equal_sizes():
    """β = 0.2: two main classes are 1 - β of a client's images and a fifth of the uniform part."""
    data = balanced(10, 1000)
    table = counts(Skew(beta=0.2), data, 5)
    assert table.sum(1).tolist() == [2000] * 5
    main = torch.stack([table[k, 2 * k : 2 * k + 2].sum() for k in range(5)]) / 2000
    assert main.tolist() == pytest.approx([0.8 + 0.2 / 5] * 5, abs=0.03)
    assert sorted(counts(Skew(beta=0.3), balanced(10, 3), 7).sum(1).tolist()) == [4] * 5 + [5] * 2


PARTITIONS_BY_CLASS = [
    Classes(per_client=2),
    Dirichlet(alpha=0.5),
    Dirichlet(alpha=0.5, balanced=True),
    Skew(beta=0.5),
]


@pytest.mark.parametrize("partition", PARTITIONS_BY_CLASS, ids=repr)
def test_partitions_by_class_repeat_refuse_and_need_labels(partition):
    data = balanced(10, 20)
    one = as_lists(partition.split(data, 10, seeded(1)))
    assert one == as_lists(partition.split(data, 10, seeded(1)))
    assert one != as_lists(partition.split(data, 10, seeded(2)))
    with raises(DataError):
        partition.split(Dataset(Images(data.train.pixels)), 5, seeded())
    with raises(ConfigError):
        partition.split(data, 0, seeded())
    with raises(ConfigError):
        partition.split(data, 205, seeded())


def test_classes_without_names_are_counted():
    data = Dataset(
        Images(torch.zeros(6, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2]))
    )
    parts = Classes(per_client=1).split(data, 3, seeded())
    assert as_lists(parts) == {
        "0": [0, 3],
        "1": [1, 4],
        "2": [2, 5],
    }
