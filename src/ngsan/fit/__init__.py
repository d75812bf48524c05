"""What is learned on a CPU beside the captioner, from photographs and their captions."""
