"""Losses on predictions of small batches, with plain Python numbers and a loop for every sum."""

from math import exp, log

Row = list[float]
Rows = list[Row]


def softmax(row: Row) -> Row:
    total = sum(exp(value) for value in row)
    return [exp(value) / total for value in row]


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


def domain_confusion(source: Row, target: Row) -> float:
    errors_source = [-log(sigmoid(value)) for value in source]
    errors_target = [-log(1 - sigmoid(value)) for value in target]
    return 0.5 * (sum(errors_source) / len(source) + sum(errors_target) / len(target))


def classwise_domain_confusion(source: Rows, target: Rows) -> float:
    value = 0.0
    for k in range(len(source[0])):
        errors = [-log(sigmoid(row[k])) for row in source] + [-log(1 - sigmoid(row[k])) for row in target]
        value += sum(errors) / len(errors)
    return value


def absolute_disagreement(first: Rows, second: Rows) -> float:
    differences = [
        abs(p - q) for a, b in zip(first, second, strict=True) for p, q in zip(softmax(a), softmax(b), strict=True)
    ]
    return sum(differences) / len(differences)


def symmetric_divergence(first: Rows, second: Rows, *, double_softmax: bool) -> float:
    """Element mean, as in the reference code of ADR."""
    terms = []
    for a, b in zip(first, second, strict=True):
        p, q = softmax(a), softmax(b)
        log_p = [log(value) for value in (softmax(p) if double_softmax else p)]
        log_q = [log(value) for value in (softmax(q) if double_softmax else q)]
        terms += [q[k] * (log(q[k]) - log_p[k]) + p[k] * (log(p[k]) - log_q[k]) for k in range(len(p))]
    return 0.5 * sum(terms) / len(terms)


def class_balance(logits: Rows) -> float:
    predictions = [softmax(row) for row in logits]
    shares = [sum(p[k] for p in predictions) / len(predictions) for k in range(len(predictions[0]))]
    return -sum(log(share + 1e-6) for share in shares) / len(shares)


def masked_consistency(student: Rows, teacher: Rows, threshold: float) -> float:
    value = 0.0
    for a, b in zip(student, teacher, strict=True):
        p, q = softmax(a), softmax(b)
        if max(q) > threshold:
            value += sum((x - y) ** 2 for x, y in zip(p, q, strict=True)) / len(p)
    return value / len(student)


def consistency_balance(student: Rows, teacher: Rows, threshold: float, variant: str) -> float:
    predictions = [softmax(row) for row in student]
    classes = len(predictions[0])
    shares = [sum(p[k] for p in predictions) / len(predictions) for k in range(classes)]
    mask_rate = sum(max(softmax(row)) > threshold for row in teacher) / len(teacher)
    t = 1 / classes
    per_class = {
        "bce": [-(t * log(q + 1e-6) + (1 - t) * log(1 - q + 1e-6)) for q in shares],
        "log": [-log(q + 1e-6) for q in shares],
        "bug": [-(t * log(q + 1e-6) + (1 - t) * log(1 + q + 1e-6)) for q in shares],
    }[variant]
    return classes * (sum(per_class) / classes) * mask_rate


def minimum_class_confusion(logits: Rows, temperature: float) -> float:
    predictions = [softmax([value / temperature for value in row]) for row in logits]
    weights = [1 + exp(sum(p * log(p) for p in row)) for row in predictions]
    weights = [len(weights) * weight / sum(weights) for weight in weights]
    classes = len(predictions[0])
    value = 0.0
    for a in range(classes):
        row = [sum(w * p[a] * p[b] for w, p in zip(weights, predictions, strict=True)) for b in range(classes)]
        value += sum(row[b] / sum(row) for b in range(classes) if b != a)
    return value / classes
