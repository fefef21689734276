"""A company's first day in a browser: tenant, single sign-on, a colleague, a key, usage, an alert, a paid invoice.

``HEARTH_TEST_PICTURES=docs/images`` makes the documentation's pictures anew.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect, sync_playwright

from tests.journey.conftest import running
from tests.journey.instance import MODEL, Instance, wait_for
from tests.journey.pictures import keep_picture
from tests.notifications.webhooks import receiver
from tests.notifications.webhooks.receiver import Receiver, signature
from tests.portal import identity_provider
from tests.portal.identity_provider import CLIENT, SECRET, Provider

pytestmark = [pytest.mark.journey, pytest.mark.browser, pytest.mark.long]

SLUG, COLLEAGUE = "initech", "peter"
BUDGET_EVENT = "hearth.budget_threshold.reached.v1"
PASSWORD = "correct horse battery"
#: Pico-dollars for a token: so much that a few requests make an invoice.
PRICE = {"model": MODEL, "prompt_pico": 10**9, "cached_prompt_pico": 10**8, "completion_pico": 10**9}
#: A day is no month: it is closed as the next month's third day would. A drain of the host has stored all by then.
CLOSE = """
from datetime import timedelta
from billing.models import WalOffset
from billing.months import closing
from billing.reports.statements import Month
from tenants.audit import SYSTEM
from tenants.models import Tenant
month = Month(tenant=Tenant.objects.get(slug="{slug}"), year={year}, month={month})
nodes = WalOffset.objects.values_list("node", flat=True)
print(closing.close(SYSTEM, month, without_nodes=list(nodes), now=month.end + timedelta(days=3)))
"""
INSTRUCTIONS = "You answer questions on printers, politely and in one sentence. " * 30


@pytest.fixture(scope="module")
def company() -> Iterator[Instance]:
    """Start an instance of its own, which may call providers and webhooks on this machine."""
    with running("--engine", "simulated", "--replicas", "2", HEARTH_WEBHOOK_NETWORKS="127.0.0.0/8") as found:
        priced = found.operator("/prices", PRICE | {"confirm": True})
        assert priced.status == 201, priced
        yield found


@pytest.fixture
def person(company: Instance) -> Iterator[Callable[[], Page]]:
    """Return what opens a browser of its own for a person. An error on its console fails the test."""
    problems: list[str] = []

    def opened() -> Page:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(company.portal_url)
        return page

    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield opened
        browser.close()
    assert problems == []


@pytest.mark.timeout(600)
def test_a_company_has_its_first_day(company: Instance, person: Callable[[], Page]) -> None:
    with identity_provider.running() as provider, receiver.listening() as hook:
        operator, owner, colleague = person(), person(), person()
        make_tenant(operator, company, provider)
        sign_in_through_the_company(owner, provider)
        colleague.goto(invitation(owner))
        join(colleague)
        secret = new_key(colleague)
        owner.get_by_test_id("rail-home").click()
        expect(owner.get_by_test_id("live")).to_have_text("Live")
        for _ in range(2):
            ask(company, secret, "Is my printer on fire?")
        see_usage_saving_and_cost_appear(owner)
        play(colleague)
        endpoint_secret = set_a_budget(owner, hook)
        for minute in range(30):  # enough for the advisor: the time stands in front of what stays the same
            ask(company, secret, f"What about page {minute}?", system=f"It is 14:{minute:02}. {INSTRUCTIONS}")
        wait_for(lambda: hook.received, "the budget's alert", seconds=60)
        assert signature(endpoint_secret, hook) in hook.received[0].headers["webhook-signature"].split()
        assert json.loads(hook.received[0].body)["type"] == BUDGET_EVENT
        read_what_there_is(owner)
        number, total = finalize(operator, company)
        pay(operator, number, total)
        owner.get_by_test_id("rail-tenant-invoices").click()
        expect(owner.get_by_role("row").filter(has_text=number)).to_contain_text("paid")


def make_tenant(operator: Page, company: Instance, provider: Provider) -> None:
    """An operator signs in, makes a tenant, and sets its provider and its address."""
    operator.get_by_label("Name").fill("admin")
    operator.get_by_label("Password").fill(str(company.up["admin"]["password"]))
    operator.get_by_test_id("sign-in").click()
    operator.get_by_test_id("rail-tenants").click()
    fill(operator.locator("form", has=operator.get_by_test_id("tenant-create")), Slug=SLUG, Name="Initech")
    operator.get_by_test_id("tenant-create").click()
    operator.get_by_test_id("tab-sign-in").click()
    form = operator.get_by_test_id("provider-form")
    fill(form, **{"Issuer URL": provider.issuer, "Client id": CLIENT, "Client secret": SECRET})
    fill(form, **{"Roles by group": "owners = owner"})
    form.get_by_role("button", name="Save").click()
    operator.get_by_test_id("provider-test").click()
    expect(operator.get_by_role("status").first).to_contain_text("keys")
    operator.get_by_test_id("tab-billing").click()
    account = operator.get_by_test_id("account")
    fill(account, **{"Legal name": "Initech Inc.", "City": "Austin", "Country": "US"})
    account.get_by_role("button", name="Save").click()


def sign_in_through_the_company(owner: Page, provider: Provider) -> None:
    """The owner signs in at the company's provider."""
    provider.person = {"sub": "1", "preferred_username": "olga", "groups": ["owners"]}
    owner.get_by_label("Or through your company").fill(SLUG)
    owner.get_by_test_id("company").click()
    owner.get_by_test_id("continue").click()
    expect(owner.get_by_test_id("signed-in-as")).to_have_text(f"olga@{SLUG}")
    expect(owner.get_by_test_id("empty")).to_contain_text("No requests in this period")


def invitation(owner: Page) -> str:
    """Return the link with which the owner invites a developer."""
    owner.get_by_test_id("rail-members").click()
    owner.get_by_test_id("invite-form").get_by_label("Role").select_option("developer")
    owner.get_by_test_id("invite").click()
    return owner.get_by_test_id("link").inner_text()


def join(colleague: Page) -> None:
    """The colleague makes an account."""
    colleague.get_by_label("Sign-in name").fill(COLLEAGUE)
    colleague.get_by_label("Password").fill(PASSWORD)
    colleague.get_by_test_id("accept").click()
    expect(colleague.get_by_text("You are a member of Initech now")).to_be_visible()


def new_key(colleague: Page) -> str:
    """Return a new key's secret, which is shown once."""
    colleague.get_by_test_id("rail-keys").click()
    colleague.get_by_label("Name").fill("printers")
    colleague.get_by_test_id("key-create").click()
    secret = colleague.get_by_test_id("secret").inner_text()
    colleague.reload()
    expect(colleague.get_by_test_id("shown-before")).to_contain_text("is shown only once")
    assert secret not in colleague.content()
    return secret


def ask(company: Instance, secret: str, question: str, system: str = INSTRUCTIONS) -> str:
    """Send a request as a program does; return its id."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0}
    answer = company.call("/chat/completions", secret, body)
    assert answer.status == 200, answer
    return answer.headers["x-request-id"]


def see_usage_saving_and_cost_appear(owner: Page) -> None:
    """The open page shows two requests, what they cost and what the second one saved."""
    cells = owner.get_by_test_id(f"by-model-{MODEL}").locator("td")
    expect(cells.nth(1)).to_contain_text("2", timeout=60_000)
    expect(cells.nth(6)).to_contain_text("50.0 %")
    for column in (8, 9):  # billed, saved by the prediction cache
        expect(cells.nth(column)).to_contain_text(re.compile(r"\$0\.\d*[1-9]"))


def play(colleague: Page) -> None:
    """The colleague asks in the playground, and looks at the request."""
    colleague.get_by_test_id("rail-playground").click()
    expect(colleague.get_by_label("Message")).to_be_focused()
    colleague.get_by_label("Max tokens").fill("40")
    colleague.get_by_label("Message").fill("Who may use the printer?")
    colleague.get_by_test_id("send").click()
    answer = colleague.get_by_test_id("answer")
    expect(answer.get_by_test_id("fact-cost")).to_contain_text("$", timeout=60_000)
    keep_picture(colleague, "playground")
    answer.get_by_test_id("request-link").click()
    expect(colleague.get_by_test_id("timeline")).to_be_visible()
    keep_picture(colleague, "request")


def set_a_budget(owner: Page, hook: Receiver) -> str:
    """The owner makes a webhook and a budget that only alerts; return the webhook's secret."""
    owner.get_by_test_id("rail-tenant-webhooks").click()
    owner.get_by_label("URL").fill(hook.url)
    owner.get_by_label(BUDGET_EVENT).check()
    owner.get_by_test_id("webhook-create").click()
    secret = owner.get_by_test_id("secret").inner_text()
    owner.get_by_test_id("rail-limits").click()
    form = owner.get_by_test_id("set-budget")
    fill(form, **{"Limit, USD": "1", "Alert at, in percent": "50"})
    form.get_by_label("When used up").select_option("only alert")
    form.get_by_role("button", name="Set budget").click()
    expect(owner.get_by_test_id("budgets")).to_contain_text("alerts only")
    return secret


def read_what_there_is(owner: Page) -> None:
    """The owner reads the advice, and lets the project keep prompts and answers."""
    owner.get_by_test_id("rail-advisor").click()
    wait_for(lambda: owner.reload() and owner.get_by_test_id("advice").is_visible(), "advice", seconds=60)
    keep_picture(owner, "advisor")
    owner.get_by_test_id("rail-projects").click()
    owner.get_by_role("button", name="Switch on").click()
    expect(owner.get_by_test_id("content-log-default")).to_contain_text("on")
    keep_picture(owner, "projects")
    owner.get_by_test_id("rail-members").click()
    expect(owner.get_by_test_id(f"member-{COLLEAGUE}")).to_be_visible()
    keep_picture(owner, "members")


def finalize(operator: Page, company: Instance) -> tuple[str, str]:
    """The month closes, the operator makes the invoice; return its number and total."""
    now = datetime.now(UTC)
    closed = company.hearth("manage", "shell", "-c", CLOSE.format(slug=SLUG, year=now.year, month=now.month))
    assert closed.returncode == 0, closed.stderr
    operator.get_by_test_id("rail-invoices").click()
    operator.get_by_test_id("issuers").click()
    form = operator.get_by_test_id("issuer")
    fill(form, **{"Name here": "berlin", "Legal name": "Example GmbH", "City": "Berlin", "Country": "DE"})
    form.get_by_role("button", name="Save").click()
    operator.get_by_test_id("rail-invoices").click()
    operator.get_by_test_id("month").select_option(f"{now:%Y-%m}")
    row = operator.get_by_test_id(f"invoice-{SLUG}")
    row.get_by_role("button", name="Make").click()
    row.get_by_role("link", name="INV-").click()
    total = operator.get_by_test_id("total").inner_text()
    expect(operator.get_by_test_id("open")).to_have_text(total)
    keep_picture(operator, "invoice")
    return operator.locator("h1").inner_text(), total


def pay(operator: Page, number: str, total: str) -> None:
    """The operator imports the bank's statement, one line of which names the invoice."""
    head = "account,reference,date,amount,currency,payer,text"
    amount = re.sub(r"[^0-9.]", "", total)
    line = f"DE89,B-1,{datetime.now(UTC):%Y-%m-%d},{amount},USD,Initech Inc.,Invoice {number}"
    operator.get_by_test_id("rail-all-billing").click()
    operator.get_by_role("link", name="Payments").click()
    statement: FilePayload = {"name": "statement.csv", "mimeType": "text/csv", "buffer": f"{head}\n{line}\n".encode()}
    operator.get_by_label("File").set_input_files(statement)
    operator.get_by_role("button", name="Import").click()
    expect(operator.get_by_test_id("report")).to_contain_text("matched")


def fill(form: Locator, **values: str) -> None:
    """Type values into a form's fields, by label."""
    for label, value in values.items():
        form.get_by_label(label, exact=True).fill(value)
