"""The room's models. Django finds models only here."""

from __future__ import annotations

from billing.models.accounts import BillingAccount
from billing.models.books import (
    NO_KEY,
    BillingMonth,
    BootUsage,
    BudgetAlert,
    BudgetWindow,
    BypassRollup,
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
    UsageRollup,
    WalOffset,
)
from billing.models.chargeback import GlCode, MonthProjectLine
from billing.models.credits import CreditEntry, CreditRequest
from billing.models.dunning import DunningCase, DunningHold, DunningPolicy, DunningRun, DunningStep
from billing.models.invoices import CreditNote, Invoice, InvoiceDocument, InvoiceLine, InvoicePayment, Issuer
from billing.models.payments import BankAssignment, BankLine, PaymentFailure
from billing.models.plans import MonthTermsLine, Plan, PlanVersion, TenantPlan

__all__ = [
    "NO_KEY",
    "BankAssignment",
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
    "DunningCase",
    "DunningHold",
    "DunningPolicy",
    "DunningRun",
    "DunningStep",
    "FinalStatement",
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
    "Plan",
    "PlanVersion",
    "PriceBook",
    "PriceVersion",
    "TenantPlan",
    "UsageExport",
    "UsageRecord",
    "UsageRollup",
    "WalOffset",
]
