"""The room's models. Django finds models only here."""

from __future__ import annotations

from billing.models.accounts import BillingAccount
from billing.models.books import (
    BillingMonth,
    BootUsage,
    BudgetAlert,
    BudgetWindow,
    FinalStatement,
    LatePosting,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    MonthLine,
    PriceBook,
    PriceVersion,
    UsageExport,
    UsageRecord,
    WalOffset,
)
from billing.models.chargeback import GlCode, MonthProjectLine
from billing.models.credits import CreditEntry, CreditRequest
from billing.models.dunning import DunningCase, DunningHold, DunningPolicy, DunningRun, DunningStep
from billing.models.invoices import CreditNote, Invoice, InvoiceDocument, InvoiceLine, InvoicePayment, Issuer
from billing.models.payments import BankAssignment, BankCredit, BankLine, PaymentFailure, PaymentUndone
from billing.models.plans import MonthTermsLine, Plan, PlanVersion, TenantPlan
from billing.models.rollups import NO_KEY, BypassRollup, DailyRollup, FoldedDay, UsageRollup
from billing.models.stripe import (
    StripeComparison,
    StripeConnection,
    StripeCustomer,
    StripeEvent,
    StripeFinding,
    StripeInvoice,
    StripeWebhookSecret,
)

__all__ = [
    "NO_KEY",
    "BankAssignment",
    "BankCredit",
    "BankLine",
    "BillingAccount",
    "BillingMonth",
    "BootUsage",
    "BudgetAlert",
    "BudgetWindow",
    "BypassRollup",
    "CreditEntry",
    "CreditNote",
    "CreditRequest",
    "DailyRollup",
    "DunningCase",
    "DunningHold",
    "DunningPolicy",
    "DunningRun",
    "DunningStep",
    "FinalStatement",
    "FoldedDay",
    "GlCode",
    "Invoice",
    "InvoiceDocument",
    "InvoiceLine",
    "InvoicePayment",
    "Issuer",
    "LatePosting",
    "LedgerAccount",
    "LedgerEntry",
    "LedgerTransaction",
    "MonthLine",
    "MonthProjectLine",
    "MonthTermsLine",
    "PaymentFailure",
    "PaymentUndone",
    "Plan",
    "PlanVersion",
    "PriceBook",
    "PriceVersion",
    "StripeComparison",
    "StripeConnection",
    "StripeCustomer",
    "StripeEvent",
    "StripeFinding",
    "StripeInvoice",
    "StripeWebhookSecret",
    "TenantPlan",
    "UsageExport",
    "UsageRecord",
    "UsageRollup",
    "WalOffset",
]
