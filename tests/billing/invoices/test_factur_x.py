"""The PDF of an invoice says that it is Factur-X, and is otherwise what typst wrote."""

from __future__ import annotations

import io

import pytest
from lxml import etree
from pypdf import PdfReader

from billing.invoices import registry
from billing.invoices.documents import factur_x
from tenants.models import Tenant
from tests.billing.invoices.conftest import finalize


@pytest.mark.django_db
def test_a_pdf_names_its_profile_and_has_the_document(acme: Tenant) -> None:
    invoice = finalize(acme)
    pdf, xml = (bytes(registry.document(invoice, kind).content) for kind in ("pdf", "xml"))
    with PdfReader(io.BytesIO(pdf), strict=True) as reader:
        root = reader.trailer["/Root"]
        xmp = etree.fromstring(root["/Metadata"].get_object().get_data())  # type: ignore[index]
        attached = reader.attachments["factur-x.xml"]
        texts = "".join(page.extract_text() for page in reader.pages)
    names = {"fx": factur_x._FIELDS["urn"], "pdfaid": "http://www.aiim.org/pdfa/ns/id/"}
    found = {each: xmp.xpath(f"string(//fx:{each})", namespaces=names) for each in ("ConformanceLevel", "Version")}
    assert found == {"ConformanceLevel": "EN 16931", "Version": "1.0"}
    assert xmp.xpath("string(//fx:DocumentFileName)", namespaces=names) == "factur-x.xml"
    assert xmp.xpath("string(//pdfaid:part)", namespaces=names) == "3"
    described = xmp.xpath("//*[local-name()='schema']/text()")
    assert "Factur-X PDFA Extension Schema" in described and len(described) == len(set(described))
    assert attached == [xml]
    assert invoice.number in texts


def test_another_form_of_a_pdf_is_refused() -> None:
    with pytest.raises(ValueError, match="typst"):
        factur_x.describe(b"%PDF-1.7\n%%EOF")
