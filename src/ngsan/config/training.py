"""How a model is trained: phases, validation, machine, and all of a run together."""

from dataclasses import dataclass, field
from typing import Literal

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.data import DataConfig, SceneConfig
from ngsan.config.decoding import DecodingConfig
from ngsan.config.model import CaptionerConfig


@dataclass(frozen=True)
class RateConfig:
    """The learning rate over the epochs of a phase. The defaults are the paper's."""

    shape: Literal["halving", "cosine", "constant", "inverse-root"] = "halving"
    """`halving` goes by whole epochs, as in the paper: epoch t of the first `rise` has t / rise of
    the highest rate, and later it is halved again and again. `cosine` goes by steps: it rises
    evenly over `rise` epochs and falls to zero along a cosine. `constant` rises likewise and
    stays; `inverse-root` rises likewise and falls as one over the root of the step."""

    highest: float = 3e-4
    """The highest learning rate."""

    rise: float = 3.0
    """Epochs over which the rate rises; 0 for none."""

    halve_after: int = 6
    """halving: the last epoch before the first halving."""

    halve_every: int = 3
    """halving: epochs from one halving to the next."""

    halve_to: float = 0.5
    """halving: what is left of the rate each time; MCAN takes a fifth, 0.2."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "highest", above=0)
        check_range(self, "rise", at_least=0)
        check_range(self, "halve_after", at_least=0)
        check_range(self, "halve_every", at_least=1)
        check_range(self, "halve_to", above=0)


@dataclass(frozen=True)
class PhaseConfig:
    """What both phases of training share."""

    epochs: int = 15
    """Passes over the training split; 0 leaves the phase out."""

    batch_size: int = 64
    """Images in a step, of all processes together, each with its captions."""

    rate: RateConfig = field(default_factory=RateConfig)
    """The learning rate."""

    clip_value: float = 0.1
    """Every number of the gradient is cut to at most this, either way; 0 for no such cut."""

    clip_norm: float = 0.0
    """Largest norm of the gradient; 0 for no bound."""

    weight_decay: float = 0.0
    """Share of a weight, times the learning rate, that is taken off it in each step."""

    patience: int = 0
    """Epochs without a better validation after which the phase ends; 0 for never."""

    average: int = 0
    """The weights after this many last epochs, 2 or more, are averaged, and the average is kept if
    it validates better than the phase's best epoch; 0 for no average."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("epochs", "clip_value", "clip_norm", "weight_decay", "patience", "average"):
            check_range(self, name, at_least=0)
        check_range(self, "batch_size", at_least=1)
        if self.average == 1:
            raise ValueError("average: 1 is no average; take 2 or more, or 0 for none")


@dataclass(frozen=True)
class CrossEntropyConfig(PhaseConfig):
    """Learning to say what people said. The defaults are the paper's where it tells them."""

    label_smoothing: float = 0.0
    """Share of the probability spread over the whole vocabulary."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        super().__post_init__()
        check_range(self, "label_smoothing", at_least=0, below=1)


@dataclass(frozen=True)
class SelfCriticalConfig(PhaseConfig):
    """Learning to be rewarded: samples that are better than the baseline become more probable."""

    rate: RateConfig = field(
        default_factory=lambda: RateConfig(shape="constant", highest=5e-6, rise=0.0)
    )
    """The learning rate."""

    samples: int = 5
    """Captions sampled of an image."""

    baseline: Literal["samples", "greedy"] = "samples"
    """What a sample is compared with: the mean reward of the other samples of its image, or the
    reward of the greedy caption."""

    temperature: float = 1.0
    """Of sampling; the loss scores with the same temperature."""

    unknown: bool = False
    """Whether the unknown word may be sampled; the loss knows the same words as sampling."""

    dropout: float = 0.0
    """Dropout in this phase. Above 0 the loss scores with a distribution other than that which was
    sampled from."""

    cider: float = 1.0
    """Weight of CIDEr-D in the reward."""

    bleu: float = 0.0
    """Weight of BLEU-4 in the reward. CIDEr-D goes up to 10, BLEU-4 up to 1."""

    end: bool = True
    """Whether the end of a caption counts as a word of the reward, so that ending well pays."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        super().__post_init__()
        check_range(self, "samples", at_least=1)
        if self.baseline == "samples" and self.samples < 2:
            raise ValueError(
                f"samples: {self.samples} has no other samples to be compared with; "
                "take 2 or more, or baseline: greedy"
            )
        check_range(self, "temperature", above=0)
        check_range(self, "dropout", at_least=0, below=1)
        if not self.cider and not self.bleu:
            raise ValueError("cider: 0 and bleu: 0 leave no reward")


@dataclass(frozen=True)
class ValidationConfig:
    """How good the model is after each epoch."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How captions are written."""

    metric: Literal["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"] = "CIDEr"
    """What the best model is best in."""

    batch_size: int = 500
    """Images captioned at a time."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "batch_size", at_least=1)


@dataclass(frozen=True)
class VisionConfig:
    """How a model with a backbone learns from pixels."""

    images: str = ""
    """A folder of pictures, or of .tar files of them, named by image id."""

    pretrained: bool = True
    """Whether the backbone begins with weights that were learned on ImageNet."""

    rate: float = 0.4
    """The backbone's learning rate as a share of the phase's; 0 leaves it as it is. In
    self-critical learning it is left as it is."""

    smallest_crop: float = 0.6
    """Smallest sides of random crops, as a share of the image's; 1 for none."""

    light: float = 0.2
    """Most random change of brightness and contrast; 0 for none."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "rate", at_least=0)
        check_range(self, "smallest_crop", above=0)
        check_range(self, "light", at_least=0, below=1)
        if self.smallest_crop > 1:
            raise ValueError(f"smallest_crop: {self.smallest_crop} must be at most 1")


@dataclass(frozen=True)
class MachineConfig:
    """Where the training runs.

    But for the precision, nothing here changes what is learned: a run may go on with other values.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU if there is one."""

    processes: int = 1
    """Processes on this machine, each with a GPU of its own if they run on GPUs. `torchrun` has
    its own option for that and decides."""

    nodes: int = 1
    """Machines; with more than one, start with `torchrun` on each."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products; weights and optimizer are float32. auto is bfloat16 on a GPU."""

    compile: bool = True
    """Whether steps are compiled on a GPU, and captured as one graph in a single process: they
    take half a minute to prepare and half the time ever after."""

    threads: int = 0
    """Threads of each process on a CPU; 0 leaves it to torch. Small models run no faster on more,
    and far slower where other programs are busy."""

    data: Literal["auto", "device", "host"] = "auto"
    """Whether the features are held in the device's memory, or read batch by batch ahead of the
    step; auto holds them if they fit."""

    workers: int = 2
    """Processes that read batches ahead."""

    save_seconds: float = 300.0
    """Time from one saved state to the next; a phase's beginning and end are saved, too."""

    log_steps: int = 20
    """Steps from one line of the log to the next."""

    tensorboard: bool = False
    """Whether to write for TensorBoard, too, which is an extra: ngsan[tensorboard]."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("processes", "nodes", "log_steps"):
            check_range(self, name, at_least=1)
        check_range(self, "workers", at_least=0)
        check_range(self, "threads", at_least=0)
        check_range(self, "save_seconds", at_least=0)


@dataclass(frozen=True)
class TrainConfig:
    """A whole run: cross-entropy, then self-critical learning."""

    task: Literal["captioning"] = "captioning"
    """What is learned."""

    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The captioner."""

    data: DataConfig = field(default_factory=DataConfig)
    """What it learns from."""

    vision: VisionConfig = field(default_factory=VisionConfig)
    """How a model with a backbone learns from pixels; without one it is not looked at."""

    cross_entropy: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The first phase."""

    self_critical: SelfCriticalConfig = field(default_factory=SelfCriticalConfig)
    """The second phase; it begins with the best model of the first."""

    validation: ValidationConfig = field(default_factory=ValidationConfig)
    """How good the model is after each epoch."""

    machine: MachineConfig = field(default_factory=MachineConfig)
    """Where it runs."""

    initial: str = ""
    """A model's folder to begin with its weights; empty for random weights."""

    seed: int = 0
    """Seed of the weights, of the order of the images, of dropout and of sampled captions."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_choice("task", self.task, ("captioning",))
        check_range(self, "seed", at_least=0)
        if not self.cross_entropy.epochs and not self.self_critical.epochs:
            raise ValueError(
                "cross_entropy.epochs: 0 and self_critical.epochs: 0 leave no training"
            )


def photo_run() -> TrainConfig:
    """The run of the model that ships: from the pixels of COCO, on one large GPU."""
    return TrainConfig(
        model=CaptionerConfig(
            feature_dim=352,
            backbone="efficientnet-lite2",
            layers=3,
            signed_geometry=True,
            norm_place="pre",
        ),
        vision=VisionConfig(smallest_crop=0.7),
        cross_entropy=CrossEntropyConfig(
            epochs=11,
            batch_size=256,
            rate=RateConfig(shape="cosine", highest=5e-4, rise=0.5),
            clip_value=0.0,
            clip_norm=1.0,
            weight_decay=0.01,
            label_smoothing=0.1,
        ),
        self_critical=SelfCriticalConfig(
            epochs=14,
            batch_size=256,
            rate=RateConfig(shape="cosine", highest=8e-5, rise=0.2),
            clip_value=0.0,
            clip_norm=1.0,
        ),
    )


def reproduction_run() -> TrainConfig:
    """What the rows of the paper's tables change: SAN's size, on stored regions, on one large GPU.

    The paper's schedule is 15 + 15 epochs with small batches; this one is shorter, and the same
    for all models.
    """
    return TrainConfig(
        model=CaptionerConfig(norm_place="pre"),
        cross_entropy=CrossEntropyConfig(
            epochs=4,
            batch_size=256,
            rate=RateConfig(shape="cosine", highest=5e-4, rise=0.5),
            clip_value=0.0,
            clip_norm=1.0,
            weight_decay=0.01,
            label_smoothing=0.1,
        ),
        self_critical=SelfCriticalConfig(
            epochs=2,
            batch_size=256,
            rate=RateConfig(shape="cosine", highest=5e-5, rise=0.2),
            clip_value=0.0,
            clip_norm=1.0,
        ),
    )


def scene_run() -> TrainConfig:
    """A run on the built-in scenes; it learns geometry in two minutes on two cores."""
    return TrainConfig(
        model=CaptionerConfig(
            vocab_size=35,
            feature_dim=32,
            dim=64,
            hidden_dim=128,
            layers=2,
            dropout=0.0,
            norm_place="pre",
        ),
        data=DataConfig(scenes=SceneConfig()),
        cross_entropy=CrossEntropyConfig(
            epochs=2,
            batch_size=32,
            rate=RateConfig(shape="cosine", highest=3e-3, rise=0.2),
            clip_value=0.0,
            clip_norm=1.0,
        ),
        self_critical=SelfCriticalConfig(
            epochs=1,
            batch_size=32,
            rate=RateConfig(shape="constant", highest=1e-4, rise=0.0),
            clip_value=0.0,
            clip_norm=1.0,
        ),
        machine=MachineConfig(threads=1, save_seconds=10.0),
    )
