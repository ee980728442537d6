"""What was found about a model, as text for a terminal, as JSON, and as one HTML page."""

from paramsym.report.balanced import print_balanced as print_balanced
from paramsym.report.findings import Findings as Findings
from paramsym.report.findings import examine as examine
from paramsym.report.findings import to_json as to_json
from paramsym.report.ledger import print_ledger as print_ledger
from paramsym.report.ledger import write_ledger_page as write_ledger_page
from paramsym.report.mapped import print_exported as print_exported
from paramsym.report.mapped import print_mapping as print_mapping
from paramsym.report.page import render_page as render_page
from paramsym.report.page import write_page as write_page
from paramsym.report.pairs import print_aligned as print_aligned
from paramsym.report.pairs import print_compared as print_compared
from paramsym.report.pairs import print_merged as print_merged
from paramsym.report.prepared import print_prepared as print_prepared
from paramsym.report.protected import print_decoded as print_decoded
from paramsym.report.protected import print_encoded as print_encoded
from paramsym.report.protected import print_queried as print_queried
from paramsym.report.text import print_findings as print_findings
from paramsym.report.text import print_transformed as print_transformed
from paramsym.report.transported import print_transported as print_transported
