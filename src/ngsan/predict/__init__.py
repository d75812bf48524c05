"""The public faces of models: captioning, translation and answers to questions."""
