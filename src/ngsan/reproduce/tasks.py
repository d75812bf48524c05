"""The tasks that tables are about, by name."""

from ngsan.reproduce.answering import Answering
from ngsan.reproduce.captioning import Captioning
from ngsan.reproduce.task import TableTask
from ngsan.reproduce.translating import Translating

TASKS: dict[str, TableTask] = {
    "captioning": Captioning(),
    "translation": Translating(),
    "answering": Answering(),
}
"""The names are those of `ngsan.config.RUNS`."""
