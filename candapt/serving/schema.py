"""The answers of the API, for its description and to check what is sent."""

from pydantic import BaseModel, Field


class Probability(BaseModel):
    """The network's own probability of a class."""

    label: str
    probability: float = Field(ge=0, le=1)


class Similar(BaseModel):
    """A source sample that resembles the one that was sent."""

    name: str | None = Field(description="Path below the source folder, or row; null if the source is not at hand.")
    label: str
    similarity: float = Field(description="Cosine similarity, at most 1.")
    picture: str | None = Field(None, description="JPEG as a data URI, if `pictures` asks for it and there is one.")


class Prediction(BaseModel):
    """The prediction for one sample."""

    name: str = Field(description="Name of the file, or number of the row.")
    label: str = Field(description="The most probable class; of unknown objects `unknown`, if the run names them.")
    confidence: float = Field(ge=0, le=1, description="Probability that the most probable class is right, calibrated.")
    softmax: float = Field(ge=0, le=1, description="The network's own probability of that class, usually too high.")
    unknown: float | None = Field(
        ge=0, le=1, description="Probability of being none of the classes; null if not known."
    )
    probabilities: list[Probability] = Field(description="The most probable classes.")
    similar: list[Similar] = Field(description="The most similar source samples.")


class Predictions(BaseModel):
    """Predictions in the order of the request."""

    predictions: list[Prediction]


class Health(BaseModel):
    """Whether the server works."""

    status: str
    waiting: int = Field(ge=0, description="Samples that wait or are worked on.")
    predicted: int = Field(ge=0, description="Samples predicted since the start.")


class Estimate(BaseModel):
    """An accuracy that was estimated without target labels, with its range."""

    value: float
    low: float
    high: float


class Evidence(BaseModel):
    """How far the model can be trusted, judged without target labels."""

    calibrated: bool = Field(description="Whether the confidence is calibrated; otherwise it is the softmax.")
    mean_confidence: float | None = Field(description="Over the target of the training.")
    estimated_accuracy: Estimate | None
    warnings: list[str]
    notes: list[str]


class Input(BaseModel):
    """What the model takes."""

    kind: str = Field(description="images, vectors, arrays, or arrays or images.")
    shape: list[int] = Field(description="Of one sample.")
    resize: int | None = Field(None, description="Height and width to which an image is resized before it is cropped.")
    mean: list[float] | None = None
    std: list[float] | None = None


class Bank(BaseModel):
    """The source samples that new ones are compared with."""

    samples: int
    pictures: bool


class Bounds(BaseModel):
    """What one request may bring."""

    samples: int
    file_bytes: int
    request_bytes: int
    pixels: int
    seconds: float


class Versions(BaseModel):
    """Versions of packages."""

    trained: dict[str, str]
    serving: dict[str, str]


class ModelFacts(BaseModel):
    """What is served."""

    task: str
    method: str
    backbone: str
    engine: str
    classes: list[str]
    input: Input
    evidence: Evidence
    similar: Bank
    limits: Bounds
    versions: Versions


class RefusedFile(BaseModel):
    """A file that cannot be used."""

    name: str
    reason: str


class Error(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="One sentence.")
    files: list[RefusedFile] = Field(description="The files that it is about.")
