"""What has to hold of a file before anything in it is believed, built, run or allocated."""
