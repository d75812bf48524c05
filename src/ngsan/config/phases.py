"""The names of the phases of training, as folders, logs and tables have them."""

CROSS_ENTROPY = "cross-entropy"
SELF_CRITICAL = "self-critical"
ANSWERING = "answering"
