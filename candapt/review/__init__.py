"""How good is it here? A person judges a random sample of the predictions; that gives the accuracy with an interval."""

from candapt.review.answers import Answer, AnswerFile, read_csv
from candapt.review.interval import Interval, Stratum, accuracy_interval
from candapt.review.measurement import Measurement, known_samples, measure_answers
from candapt.review.sampling import Population, Sample, drawing_order

__all__ = [
    "Answer",
    "AnswerFile",
    "Interval",
    "Measurement",
    "Population",
    "Sample",
    "Stratum",
    "accuracy_interval",
    "drawing_order",
    "known_samples",
    "measure_answers",
    "read_csv",
]
