"""The commands: a table of their names, and one module for each with its options and its work.

Nothing heavy is imported here, so that `candapt --help` answers at once.
"""

COMMANDS = {
    "demo": "See it work: from rendered digits to handwritten ones, source-only beside CAN, in about a minute.",
    "adapt": "Train on a labeled source and an unlabeled target; write model and predictions to a run folder.",
    "predict": "Predict new images or features with the model of a run.",
    "evaluate": "Measure the model of a run on labeled data.",
    "review": "Judge a random sample on a local page; gives the accuracy with a confidence interval.",
    "suggest": "List the target samples of a run whose labels would help most, to label them for --known-labels.",
    "report": "Rebuild the page of a run, or make one page that compares several runs.",
    "export": "Write the adapted network as one ONNX file, or as a folder for the Hugging Face Hub.",
    "serve": "Serve the model of a run on this machine: a JSON API, and a page to drop images on.",
    "tune": "Search the settings that a label-free score prefers; write them to a config.yaml for adapt.",
    "embed": "Write the features of a frozen backbone to an .npz file, to adapt later without the images.",
    "cache": "List or clear the cached outputs of frozen layers.",
    "benchmark": "Run the tasks, methods and seeds of a suite and write tables; stored results are not run again.",
}  # what each command does, in the order of the help; its module has the same name
