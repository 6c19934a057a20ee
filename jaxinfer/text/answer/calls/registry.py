"""The forms of calls that are known, and which one a chat template or a name means."""

from jaxinfer.text.answer.calls.form import CallForm
from jaxinfer.text.answer.calls.json_calls import APRIEL, COHERE, GRANITE, HERMES, INTERN, LLAMA, MISTRAL_LIST, PHI
from jaxinfer.text.answer.calls.named_calls import DEEPSEEK_V3, DEEPSEEK_V31, FUNCTIONARY, KIMI, MISTRAL
from jaxinfer.text.answer.calls.xml_calls import GLM, MINIMAX, QWEN, SEED

CALL_FORMS: tuple[CallForm, ...] = (
    *(SEED, MINIMAX, GLM, QWEN, KIMI, DEEPSEEK_V3, DEEPSEEK_V31, MISTRAL, MISTRAL_LIST, COHERE, PHI, GRANITE),
    *(APRIEL, INTERN, LLAMA, FUNCTIONARY, HERMES),
)
"""In the order in which a template is asked: what only some show comes first."""


def form_of_template(template: str) -> CallForm | None:
    """The form in which a chat template writes calls; None if it is not known."""
    return next((form for form in CALL_FORMS if form.shows(template)), None)


def form_of_name(name: str, shown: CallForm | None) -> CallForm:
    """The form of a name that one has. shown: by the model's template; it is preferred where several have the name."""
    if shown is not None and name in shown.names:
        return shown
    return next(form for form in CALL_FORMS if name in form.names)
