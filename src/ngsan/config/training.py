"""Training runs: schedules, phases, validation, runtime, and a whole run of each task."""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ngsan.config.data import AnswerDataConfig, DataConfig, ParallelConfig
from ngsan.config.decoding import DecodingConfig, TranslationDecodingConfig
from ngsan.config.model import AnswererConfig, CaptionerConfig, TranslatorConfig
from ngsan.config.schema import check_range, check_seed, check_types

CROSS_ENTROPY = "cross-entropy"
SELF_CRITICAL = "self-critical"
ANSWERING = "answering"
"""The names of the phases, in folders, logs and tables."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the epochs of a phase. The defaults are the paper's."""

    shape: Literal["step", "cosine", "constant", "inverse-sqrt"] = "step"
    """`step` changes per epoch, as in the paper: it rises linearly over `warmup_epochs` epochs and
    later drops by `step_factor` again and again. The others change per step: after a linear warmup
    `cosine` falls to zero along a cosine, `constant` stays, and `inverse-sqrt` falls as one over
    the square root of the step."""

    peak_lr: float = 3e-4
    """The highest learning rate."""

    warmup_epochs: float = 3.0
    """Epochs over which the rate rises; 0 for none."""

    step_start: int = 6
    """Shape step: the last epoch before the first drop."""

    step_every: int = 3
    """Shape step: epochs from one drop to the next."""

    step_factor: float = 0.5
    """Shape step: factor of each drop; MCAN uses a fifth, 0.2."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "peak_lr", "step_factor", above=0)
        check_range(self, "warmup_epochs", "step_start", at_least=0)
        check_range(self, "step_every", at_least=1)


@dataclass(frozen=True)
class PhaseConfig:
    """A phase of training, whatever the task."""

    epochs: int = 15
    """Passes over the training split; 0 skips the phase."""

    batch_size: int = 64
    """Images in a step, over all processes, each with its captions."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate."""

    clip_grad_value: float = 0.1
    """Bound of each element of the gradient, either way; 0 for none."""

    clip_grad_norm: float = 0.0
    """Bound of the gradient's norm; 0 for none."""

    weight_decay: float = 0.0
    """Decoupled weight decay, as in AdamW."""

    patience: int = 0
    """Stop the phase after this many epochs without a better validation; 0 for never."""

    average_epochs: int = 0
    """Average the weights after this many last epochs, 2 or more, and keep the average if it
    validates better than the phase's best epoch; 0 for no average."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "epochs", "clip_grad_value", "clip_grad_norm", at_least=0)
        check_range(self, "weight_decay", "patience", "average_epochs", at_least=0)
        check_range(self, "batch_size", at_least=1)
        if self.average_epochs == 1:
            raise ValueError("average_epochs: 1 is not an average; use 2 or more, or 0 for none")


@dataclass(frozen=True)
class CrossEntropyConfig(PhaseConfig):
    """Teacher-forced training on reference captions. The defaults are the paper's if it has any."""

    label_smoothing: float = 0.0
    """Share of the probability spread over the whole vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "label_smoothing", at_least=0, below=1)


@dataclass(frozen=True)
class SelfCriticalConfig(PhaseConfig):
    """The self-critical (REINFORCE) phase: samples above the baseline become more probable."""

    schedule: ScheduleConfig = field(
        default_factory=partial(
            ScheduleConfig, peak_lr=3e-4 / 2**4, warmup_epochs=0.0, step_start=3
        )
    )
    """The learning rate. The default continues the paper's schedule of 15 epochs."""

    num_samples: int = 5
    """Captions sampled per image."""

    baseline: Literal["samples", "greedy"] = "samples"
    """What a sample's reward is compared with: the mean reward of the other samples of its image,
    or the reward of the greedy caption."""

    temperature: float = 1.0
    """Temperature of sampling; the loss uses the same."""

    allow_unknown: bool = False
    """Whether the unknown word may be sampled; the loss forbids the same words as sampling."""

    dropout: float = 0.0
    """Dropout in this phase. Above 0 the loss scores with a distribution other than the one that
    was sampled from."""

    cider_weight: float = 1.0
    """Weight of CIDEr-D in the reward."""

    bleu_weight: float = 0.0
    """Weight of BLEU-4 in the reward. CIDEr-D goes up to 10, BLEU-4 up to 1."""

    include_end: bool = True
    """Whether the end of a caption counts as a word of the reward, to reward good endings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_samples", at_least=1)
        if self.baseline == "samples" and self.num_samples < 2:
            raise ValueError(
                f"num_samples: {self.num_samples} leaves no other samples to compare with; "
                "use 2 or more, or baseline: greedy"
            )
        check_range(self, "temperature", above=0)
        check_range(self, "dropout", at_least=0, below=1)
        if not self.cider_weight and not self.bleu_weight:
            raise ValueError("cider_weight: 0 and bleu_weight: 0 leave no reward")


@dataclass(frozen=True)
class TranslationPhaseConfig(CrossEntropyConfig):
    """Teacher-forced training on reference translations. The defaults are fairseq's for WMT14."""

    epochs: int = 20
    """Passes over the training split."""

    batch_size: int = 25_000
    """Target subwords in a step, over all processes, including padding."""

    schedule: ScheduleConfig = field(
        default_factory=partial(
            ScheduleConfig, shape="inverse-sqrt", peak_lr=7e-4, warmup_epochs=0.75
        )
    )
    """The learning rate."""

    clip_grad_value: float = 0.0
    """Bound of each element of the gradient, either way; 0 for none."""

    average_epochs: int = 5
    """Average the weights after this many last epochs, 2 or more, and keep the average if it
    validates better than the phase's best epoch; 0 for no average."""

    label_smoothing: float = 0.1
    """Share of the probability spread over the whole vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "epochs", at_least=1)


@dataclass(frozen=True)
class AnswerPhaseConfig(PhaseConfig):
    """Training on reference answers. The defaults are MCAN's."""

    epochs: int = 13
    """Passes over the training split."""

    batch_size: int = 64
    """Questions in a step, over all processes."""

    schedule: ScheduleConfig = field(
        default_factory=partial(
            ScheduleConfig,
            peak_lr=1e-4,
            warmup_epochs=4.0,
            step_start=10,
            step_every=2,
            step_factor=0.2,
        )
    )
    """The learning rate."""

    clip_grad_value: float = 0.0
    """Bound of each element of the gradient, either way; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "epochs", at_least=1)


@dataclass(frozen=True)
class ValidationConfig:
    """Validation of a captioner after each epoch."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How captions are searched for."""

    metric: Literal["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"] = "CIDEr"
    """The metric that selects the best model."""

    batch_size: int = 500
    """Images in a batch."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "batch_size", at_least=1)


@dataclass(frozen=True)
class TranslationValidationConfig:
    """Validation of a translator after each epoch."""

    metric: Literal["BLEU", "log-probability"] = "BLEU"
    """The metric that selects the best model: BLEU as sacreBLEU computes it, or the mean
    log-probability of the reference subwords."""

    decoding: TranslationDecodingConfig = field(default_factory=TranslationDecodingConfig)
    """How translations are searched for."""

    batch_size: int = 8_000
    """Source subwords in a batch, including padding."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "batch_size", at_least=1)


@dataclass(frozen=True)
class AnswerValidationConfig:
    """Validation of an answerer after each epoch."""

    metric: Literal["accuracy"] = "accuracy"
    """The metric that selects the best model: the official accuracy of VQA."""

    batch_size: int = 512
    """Questions in a batch."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "batch_size", at_least=1)


@dataclass(frozen=True)
class VisionConfig:
    """Training from pixels, for a model with a backbone."""

    images: str = ""
    """A folder of images, or of .tar files of them, named by image id."""

    pretrained: bool = True
    """Whether to initialise the backbone with pretrained weights: of ImageNet, or those that
    another backbone has on its hub."""

    weights: Literal["own", "detector"] = "own"
    """Which pretrained weights: the backbone's own, or those of the detector that ships with ngsan,
    whose backbone is EfficientNet-Lite2 and was trained on COCO's boxes (train2017)."""

    lr_scale: float = 0.4
    """The backbone's learning rate as a share of the phase's; 0 freezes the backbone. The
    self-critical phase always freezes it."""

    min_crop: float = 0.6
    """Smallest sides of random crops, as a share of the image's; 1 for none."""

    color_jitter: float = 0.2
    """Largest random change of brightness and contrast; 0 for none."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "lr_scale", at_least=0)
        check_range(self, "min_crop", above=0, at_most=1)
        check_range(self, "color_jitter", at_least=0, below=1)


@dataclass(frozen=True)
class RuntimeConfig:
    """Where the training runs.

    Except for the precision, nothing here changes the result: a resumed run may use other values.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto uses a GPU if there is one."""

    processes: int = 1
    """Processes on this machine, each with a GPU of its own if they run on GPUs. With `torchrun`
    its own option counts instead."""

    nodes: int = 1
    """Machines; with more than one, start with `torchrun` on each."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; weights and optimizer are float32. auto is bfloat16 on a
    GPU."""

    compile: bool = True
    """Whether steps are compiled on a GPU, and captured as one CUDA graph in a single process:
    half a minute to prepare, then half the time per step."""

    threads: int = 0
    """CPU threads of each process; 0 chooses them by the size of the model. Small models are no
    faster with more than one."""

    data: Literal["auto", "device", "host"] = "auto"
    """Whether the features are held in the device's memory, or read batch by batch ahead of the
    step; auto holds them if they fit."""

    workers: int = 2
    """Processes that read batches ahead."""

    save_seconds: float = 300.0
    """Seconds between checkpoints; the start and end of a phase are saved, too."""

    log_steps: int = 20
    """Steps between lines of the log."""

    tensorboard: bool = False
    """Whether to write logs for TensorBoard, too; needs ngsan[tensorboard]."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "processes", "nodes", "log_steps", at_least=1)
        check_range(self, "workers", "threads", "save_seconds", at_least=0)
        check_range(self, "workers", "threads", "nodes", at_most=1024)
        check_range(self, "processes", at_most=64)


@dataclass(frozen=True)
class TrainConfig:
    """The training of a captioner: cross-entropy, then self-critical."""

    task: Literal["captioning"] = "captioning"
    """The kind of model to train."""

    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The captioner."""

    data: DataConfig = field(default_factory=DataConfig)
    """The dataset."""

    vision: VisionConfig = field(default_factory=VisionConfig)
    """Training from pixels; ignored without a backbone."""

    cross_entropy: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The first phase."""

    self_critical: SelfCriticalConfig = field(default_factory=SelfCriticalConfig)
    """The second phase; it starts from the best model of the first."""

    validation: ValidationConfig = field(default_factory=ValidationConfig)
    """Validation after each epoch."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where the training runs."""

    init_from: str = ""
    """The folder of a model to initialise the weights from; empty for random weights."""

    seed: int = 0
    """Seed of the weights, the order of the images, dropout and sampled captions."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "seed", at_least=0)
        check_seed(self)
        if not self.cross_entropy.epochs and not self.self_critical.epochs:
            raise ValueError(
                "cross_entropy.epochs: 0 and self_critical.epochs: 0 leave no training"
            )


@dataclass(frozen=True)
class TranslationConfig:
    """The training of a translator."""

    task: Literal["translation"] = "translation"
    """The kind of model to train."""

    model: TranslatorConfig = field(default_factory=TranslatorConfig)
    """The translator."""

    data: ParallelConfig = field(default_factory=ParallelConfig)
    """The dataset."""

    cross_entropy: TranslationPhaseConfig = field(default_factory=TranslationPhaseConfig)
    """The one phase."""

    validation: TranslationValidationConfig = field(default_factory=TranslationValidationConfig)
    """Validation after each epoch."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where the training runs."""

    init_from: str = ""
    """The folder of a model to initialise the weights from; empty for random weights."""

    seed: int = 0
    """Seed of the weights, the order of the sentences and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "seed", at_least=0)
        check_seed(self)


@dataclass(frozen=True)
class AnsweringConfig:
    """The training of a model that answers questions about images."""

    task: Literal["answering"] = "answering"
    """The kind of model to train."""

    model: AnswererConfig = field(default_factory=AnswererConfig)
    """The answerer."""

    data: AnswerDataConfig = field(default_factory=AnswerDataConfig)
    """The dataset."""

    training: AnswerPhaseConfig = field(default_factory=AnswerPhaseConfig)
    """The one phase."""

    validation: AnswerValidationConfig = field(default_factory=AnswerValidationConfig)
    """Validation after each epoch."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where the training runs."""

    seed: int = 0
    """Seed of the weights, the order of the questions and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "seed", at_least=0)
        check_seed(self)
