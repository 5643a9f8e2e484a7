"""A tokenizer that reads bytes, for tests that need a chat template and no trained tokenizer."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(template, words=(), control=_CONTROL, **named):
    """Makes the tokenizer, by default with ChatML's control tokens; <|im_end|> ends a reply.

    Args:
        template: The chat template.
        words: Texts that are one token each, and that stay in decoded texts, such as ``<think>``.
        control: The control tokens.
        **named: Which tokens have names, such as `eos_token`.
    """
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_alone = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_alone.decoder = decoders.ByteLevel()
    bytes_alone.add_special_tokens(list(control))
    named = named or {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    made = PreTrainedTokenizerFast(tokenizer_object=bytes_alone, **named)
    made.add_tokens([AddedToken(word) for word in words])
    made.chat_template = template
    return made
