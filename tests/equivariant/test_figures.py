import numpy as np
import pytest

from paramsym.equivariant import best_component, components, image_shift
from tests.equivariant.instances import GROUPS

pytest.importorskip("matplotlib")


def test_the_graph_has_one_line_for_each_edge_and_dashes_where_signs_change():
    from paramsym.equivariant.figures import draw_weight_sharing
    from paramsym.equivariant.sharing import weight_sharing

    component = components(GROUPS["rotation 3x3"][0], 3).component((1, 1, 0))
    encoder, decoder = weight_sharing(component)
    lines = draw_weight_sharing(component).axes[0].get_lines()
    edges = [line for line in lines if len(line.get_xdata()) == 2 and line.get_marker() == "None"]
    assert len(edges) == np.count_nonzero(encoder) + np.count_nonzero(decoder)
    dashed = sum(line.get_linestyle() == "--" for line in edges)
    assert dashed == (encoder < 0).sum() + (decoder < 0).sum() > 0
    colours = {str(line.get_color()) for line in edges}
    assert len(colours) == component.parameter_count


def test_a_graph_that_cannot_be_read_is_refused():
    from paramsym.equivariant.figures import draw_sharing_pattern, draw_weight_sharing

    component = components(image_shift(8, 8), 9)[0]
    with pytest.raises(ValueError, match="Use draw_sharing_pattern"):
        draw_weight_sharing(component)
    assert draw_sharing_pattern(component).axes


def test_the_spectrum_fills_the_chosen_eigenvalues():
    from paramsym.equivariant.figures import draw_spectrum

    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 100))
    best = best_component(x @ x.T / 100, image_shift(5, 6), 8)
    figure = draw_spectrum(best)
    filled = [
        line
        for line in figure.axes[0].get_lines()
        if line.get_markerfacecolor() != "none"
        and line.get_marker() == "o"
        and line.get_label().startswith("_")
    ]
    assert sum(len(line.get_xdata()) for line in filled) == sum(best.component.ranks)


def test_reconstructions_have_one_row_for_each_autoencoder():
    from paramsym.equivariant.figures import draw_reconstructions

    images = np.random.default_rng(0).random((3, 4, 5)).astype(np.float32)
    figure = draw_reconstructions(images, {"identity": np.eye(20), "zero": np.zeros((20, 20))})
    assert len(figure.axes) == 9
