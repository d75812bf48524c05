"""`ngsan evaluate` of a translator: the translations of a split and their BLEU."""

import json
from pathlib import Path

from rich.console import Console

from ngsan.commands.command_line import progress_bar
from ngsan.commands.score_translation import print_scores, score_values
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.durable import write_output
from ngsan.metrics.translation import compound_bleu, compound_bleu_lacks, plain_bleu

WORDS = 4000
"""Source words that are translated at a time, unless told otherwise."""


def evaluate_translations(
    model: str,
    data: str,
    to: str,
    split: str,
    *,
    device: str = "auto",
    batch_size: int | None = None,
    json_file: str | None = None,
) -> None:
    """Translates a split, writes the translations, and scores them.

    Args:
        model: The model's folder.
        data: The folder of parallel texts.
        to: The file to write, a sentence a line.
        split: Which split.
        device: Where the model runs.
        batch_size: Source words at a time, padding included; None for `WORDS`.
        json_file: Where to write the scores, too, if anywhere.

    Raises:
        ValueError: There is no such split, or its texts are not kept.
    """
    from ngsan.predict.translating import open_translator

    translator = open_translator(model, device=device)
    texts = ParallelSplit(data, split, verify=True)
    console = Console()
    words = WORDS if batch_size is None else batch_size
    if words < 1:
        raise ValueError(f"batch_size: {words} must be at least 1")
    references = texts.texts("target")
    if texts.subwords().signature == translator.subwords.signature:
        sentences = [texts.sentence("source", place) for place in range(len(texts))]
    else:  # texts that were cut into pieces of their own, such as another test set
        sentences = translator.subwords.encode_all(texts.texts("source"))
    with progress_bar(console, "sentences", len(texts)) as advance_to:
        found = translator.translate_ids(sentences, words=words, on_group=advance_to)
        advance_to(len(texts))
    written = [best.text for best, *_ in found]
    Path(to).parent.mkdir(parents=True, exist_ok=True)
    write_output(to, "".join(f"{text}\n" for text in written))
    console.print(f"{len(written):,} translations are in {to}", highlight=False, markup=False)
    scores = [plain_bleu(written, references)]
    lacks = compound_bleu_lacks(texts.language)
    if not lacks:
        scores.append(compound_bleu(written, references, language=texts.language))
    print_scores(scores, lacks)
    if json_file is not None:
        write_output(json_file, json.dumps([score_values(one) for one in scores], indent=2) + "\n")
