"""Methods: what each is composed of. One module for each paper, or for what several papers compare with."""
