"""From official archives or folders of images to the prepared form of a data set."""
