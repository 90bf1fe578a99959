"""Settings chosen without target labels: trials with other settings, judged by a label-free score."""
