"""Factur-X metadata (``fx:``) of a PDF/A-3 that has its invoice attached: XMP, and the schema that describes it.

typst writes the XMP of PDF/A alone. Its bytes stay as they are: the changed metadata is appended as an incremental
update (ISO 32000-1, 7.5.6), in which only that object is new.
"""

from __future__ import annotations

import re

from drafthorse.xmp_schema import XMP_SCHEMA
from lxml import etree

_FIELDS = {
    "urn": "urn:factur-x:pdfa:CrossIndustryDocument:invoice:1p0#",
    "xml_filename": "factur-x.xml",
    # Credit notes too: the attached document says what it is.
    "documenttype": "INVOICE",
    "version": "1.0",
    "xmp_level": "EN 16931",
}
#: Values of drafthorse's template that typst has written already.
_UNUSED = dict.fromkeys(("title", "author", "subject", "producer", "creator_tool", "timestamp"), "")
_NAMES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "extension": "http://www.aiim.org/pdfa/ns/extension/",
    "fx": _FIELDS["urn"],
}
_METADATA = re.compile(
    rb"\n(\d+) 0 obj\n<</Length \d+/Type/Metadata/Subtype/XML>>\nstream\n(.*?)\nendstream", re.DOTALL
)
_TRAILER = re.compile(rb"trailer\n<<(.*)>>\nstartxref\n(\d+)\n%%EOF\s*\Z", re.DOTALL)
_BEGIN = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'


def describe(pdf: bytes) -> bytes:
    """Return typst's PDF with the metadata of Factur-X. Raises ValueError for a PDF of another form."""
    found, trailer = _METADATA.findall(pdf), _TRAILER.search(pdf)
    if len(found) != 1 or trailer is None:
        raise ValueError("typst writes its metadata or its trailer in another form than before")
    number, packet = found[0]
    xmp = _described(packet)
    start = len(pdf) + 1
    update = b"\n%s 0 obj\n<</Length %d/Type/Metadata/Subtype/XML>>\nstream\n%s\nendstream\nendobj\n" % (
        number,
        len(xmp),
        xmp,
    )
    table = b"xref\n%s 1\n%010d 00000 n\r\ntrailer\n<<%s/Prev %s>>\nstartxref\n%d\n%%%%EOF\n" % (
        number,
        start,
        trailer[1],
        trailer[2],
        len(pdf) + len(update),
    )
    return pdf + update + table


def _described(packet: bytes) -> bytes:
    """Return an XMP packet with the fields of Factur-X, and with the schema of them among those that it describes."""
    xmp = etree.fromstring(packet)
    theirs = etree.fromstring(XMP_SCHEMA.format(**_FIELDS, **_UNUSED).strip().encode())
    schemas = "//extension:schemas/rdf:Bag"
    xmp.xpath(schemas, namespaces=_NAMES)[0].append(theirs.xpath(f"{schemas}/rdf:li", namespaces=_NAMES)[0])
    [fields] = theirs.xpath("//rdf:Description[fx:ConformanceLevel]", namespaces=_NAMES)
    xmp.xpath("//rdf:RDF", namespaces=_NAMES)[0].append(fields)
    text = etree.tostring(xmp, encoding="unicode")
    return f'{_BEGIN}{text}<?xpacket end="r"?>'.encode()
