"""What Thresher says to databases: quoted names, and the statements of each dialect in their .sql files."""

from thresher.db.names import InvalidName, TableName
from thresher.db.statements import statement

__all__ = ["InvalidName", "TableName", "statement"]
