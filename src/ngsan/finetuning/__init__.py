"""Fine-tuning: a captioner of photographs learns from the user's own pictures and captions."""
