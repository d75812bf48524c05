"""Captions on a GPU equal those on the CPU: CUDA graphs, reused buffers, any batch."""

import copy
from itertools import chain

import pytest
import torch

from ngsan import build_captioner
from ngsan.config import DecodingConfig
from ngsan.models.steps import CaptionerSteps
from ngsan.predict.captioner import Captioner
from ngsan.search import Beam, Constraints, Greedy, Sampling
from ngsan.text.vocabulary import Vocabulary
from tests.predict.outputs import n_best

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.parametrize("backend", ["torch"], indirect=True),
]

VOCABULARY = Vocabulary([*(f"w{index}" for index in range(60)), "a", "of", "<unk>"])
SEARCHES = {
    "beam": DecodingConfig(),
    "greedy": DecodingConfig(method="greedy"),
    "one sample": DecodingConfig(method="sample"),
    "samples": DecodingConfig(method="sample", num_return=40, top_p=0.9, temperature=0.7, seed=3),
    "groups": DecodingConfig(beam=6, groups=3, num_return=6),
    "constraints": DecodingConfig(
        beam=4,
        num_return=4,
        require="w3 w9",
        no_repeat_ngram=2,
        no_bad_ending=True,
        min_length=3,
        length_penalty=1.0,
    ),
    "prefix": DecodingConfig(prefix="a w1 of", max_length=7, early_stopping=True),
    "one word": DecodingConfig(max_length=1),
    "odd length": DecodingConfig(max_length=23, beam=5),
}


def make(seed=1, **keys):
    torch.manual_seed(seed)
    shape = dict(layers=2, dim=32, heads=4, hidden_dim=64, feature_dim=16)
    captioner = build_captioner("ng-san", vocab_size=len(VOCABULARY), **shape, **keys)
    for parameter in captioner.parameters():
        parameter.data *= 1.5
    return captioner.double().eval()


def regions(count, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 9, 16, generator=generator).double()
    boxes = (torch.rand(count, 9, 4, generator=generator) * 0.4 + 0.1).double()
    return features, boxes, torch.rand(count, 9, generator=generator) > 0.3


@pytest.mark.parametrize("count", [1, 16, 17, 40])
@pytest.mark.parametrize("name", SEARCHES)
def test_captions_equal_the_cpu(name, count):
    models = [make(), make(2)]
    for some in (models[:1], models):
        here = Captioner.from_model(some, VOCABULARY)
        there = Captioner.from_model([copy.deepcopy(model).cuda() for model in some], VOCABULARY)
        for seed in range(3):  # the second and third reuse the captured graphs
            images = regions(count, seed)
            if seed == 2:
                images[2][0] = False  # an image without regions
            expected, found = (
                n_best(predictor, *images, decoding=SEARCHES[name], attention=True)
                for predictor in (here, there)
            )
            same = 0
            for ours, its in zip(chain(*expected), chain(*found), strict=True):
                assert ours.score == pytest.approx(its.score, abs=0.1)
                if ours.text == its.text:
                    same += 1
                    assert ours.score == pytest.approx(its.score, abs=1e-4)
                    torch.testing.assert_close(
                        torch.from_numpy(ours.attention), torch.from_numpy(its.attention)
                    )
            # Log-probabilities are in single precision: now and then rounding drops a caption.
            assert same >= 0.97 * sum(map(len, expected))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype feature
@pytest.mark.parametrize(
    "search",
    [
        lambda steps: Greedy(steps),
        lambda steps: Beam(steps, beam=4, must_end=True),
        lambda steps: Sampling(steps, samples=3, top_k=5, top_p=0.9, temperature=0.5),
        lambda steps: Beam(
            steps,
            beam=4,
            groups=2,
            length_penalty=1.0,
            constraints=Constraints(
                required=[3],
                no_repeat_ngram=2,
                bad_endings=[5],
                prefix=[1],
                forbidden=[2],
                min_length=2,
            ),
        ),
    ],
)
def test_step_does_not_synchronize(search):
    found = search(CaptionerSteps(make().cuda(), *(part.cuda() for part in regions(4, 0))))
    with torch.inference_mode():
        found.begin()
        found.advance()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                found.advance()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_must_end_equals_the_cpu():
    here, there = make(), make().cuda()
    images = regions(20, 0)
    expected, found = (
        Beam(
            CaptionerSteps(model, *images),
            beam=4,
            num_return=4,
            max_length=4,
            length_penalty=0.6,
            must_end=True,
        ).run()
        for model in (here, there)
    )
    assert found.ended.all()
    assert (found.words.cpu() == expected.words).all(-1).float().mean() >= 0.97
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=0, atol=1e-3)


def test_changed_weights_take_effect():
    captioner = make().cuda()
    predictor = Captioner.from_model(captioner, VOCABULARY)
    images = regions(5, 0)
    before = [predictor.caption_regions(*images)[0].log_probability for _ in range(2)]
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(1.1)
    fresh = Captioner.from_model(copy.deepcopy(captioner), VOCABULARY).caption_regions(*images)[0]
    after = predictor.caption_regions(*images)[0]
    assert before[0] == before[1] != after.log_probability
    assert after.log_probability == pytest.approx(fresh.log_probability, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close(dtype):
    captioner = make()
    predictor = Captioner.from_model(copy.deepcopy(captioner).to("cuda", dtype), VOCABULARY)
    written = predictor.backend.search(*regions(20, 0), decoding=DecodingConfig(method="greedy"))
    assert written.word_log_probs.dtype == torch.float32
    given = torch.cat((torch.zeros_like(written.words[..., :1]), written.words[..., :-1]), -1)
    exact = captioner(*regions(20, 0), given.cpu()).log_softmax(-1)
    exact = exact.gather(-1, written.words.cpu().unsqueeze(-1)).squeeze(-1)
    real = written.word_log_probs.cpu() != 0
    difference = (exact - written.word_log_probs.cpu())[real].abs()
    assert difference.mean() < 0.1
