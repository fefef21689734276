"""The texts of scripts, which ``say`` of ``page.js`` translates: on each page as data, in its language."""

from __future__ import annotations

from typing import Literal

from django import template
from django.conf import settings
from django.utils.html import json_script
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as _

register = template.Library()

#: Texts of scripts that every page loads.
EVERYWHERE = (
    _("Copied"),
    _("Selected: press Ctrl C"),
    _("Table, scrolls sideways"),
    _("Live"),
    _("Updating every 3 s"),
    _("Not live"),
    _("Paused"),
    _("Connecting"),
    _("No connection, trying again"),
)
#: Of ``playground.js``; names in braces stand for values.
PLAYGROUND = (
    _("Sending…"),
    _("it is off for the tenant, the project or the key"),
    _("the answer is sampled; set temperature 0 or a seed, or turn the cache on"),
    _("it is turned off on this page"),
    _("the key may not read it"),
    _("a tool of these runs on a server"),
    _("an address may show another image next time"),
    _("its prefix was warm there"),
    _("the conversation went there before"),
    _("it had to wait least there"),
    _("the only ready replica"),
    _("This is not JSON: {problem}"),
    _("Nothing was sent. Correct what is marked."),
    _("Write a list of tools: [{…}]."),
    _("Write a JSON schema: {…}."),
    _("You are signed out. Sign in again in another tab, then send again."),
    _("you may not call models here any more"),
    _("you are not a member any more"),
    _("too many changes within a minute"),
    _("No key for this page: {why}. Reload the page."),
    _("Choice {number}"),
    _("Reasoning"),
    _("Calls"),
    _("Result of {tool}"),
    _("Result of {tool}, sent with your next message"),
    _("hit, stored {seconds} s ago"),
    _("hit"),
    _("miss"),
    _("shared with an identical request that ran"),
    _("bypassed: {why}"),
    _("Prediction cache"),
    _(", about {tokens} tokens warm"),
    _("Route"),
    _("Cost"),
    _("Saved by prediction cache"),
    _("First token, here"),
    _(", avoided"),
    _("Prompt tokens, uncached + cached"),
    _(", {tokens} of them reasoning"),
    _("Completion tokens"),
    _("Speed"),
    _("{rate} tokens/s, {time} each"),
    _("no price yet"),
    _("Saved by prefix cache"),
    _("First token, at the gateway"),
    _("Each further token, at the gateway"),
    _("What this means"),
    _("Send again"),
    _("Request"),
    _("Writing…"),
    _("The stream ended before its end. What arrived is kept."),
    _("This model may not read images."),
    _("Broken off"),
    _("Cut at its limit of tokens"),
    _("Calls a tool: write its result, then send"),
    _("Stopped by a filter"),
    _("Complete"),
    _("Failed"),
    _("Refused, HTTP {status}"),
    _("Stopped. What was written until then is charged."),
    _("The gateway sent what this page cannot read. What arrived is kept."),
    _("The connection to the gateway broke. What arrived is kept; send again for a whole answer."),
    _(
        "No answer from {base}. Either the gateway cannot be reached there, or it accepts no calls from {here}: an "
        "operator sets HEARTH_API_URL and HEARTH_PORTAL_URL."
    ),
    _("Copy"),
    _("Show as code"),
    _("Remove"),
    _("{file} cannot be read."),
    _("{file} is no PNG, JPEG, WebP or GIF."),
    _("{file} is too large: a request has at most {size} MiB, in which an image takes a third more than its file."),
    _("Result of a tool"),
    _("You"),
    _("An image that you sent"),
    _("{model} reads no images. Choose another model, or remove them."),
    _("Write a message first."),
    _("The request is larger than the {size} MiB that are allowed. Remove an image, or begin a new conversation."),
)
WORDS = {"everywhere": EVERYWHERE, "playground": PLAYGROUND}


@register.simple_tag
def script_words(scripts: Literal["everywhere", "playground"] = "everywhere") -> SafeString | str:
    """Write the texts of scripts in the reader's language as data; nothing for English, which stands in the scripts."""
    if get_language() == settings.LANGUAGE_CODE:
        return ""
    data = json_script({text: gettext(text) for text in WORDS[scripts]})
    return mark_safe(data.replace("<script ", "<script data-words ", 1))  # json_script escapes the texts
