"""Access to databases: quoted table names, and the SQL statements of each dialect in .sql files."""

from thresher.db.names import InvalidName, TableName
from thresher.db.statements import statement

__all__ = ["InvalidName", "TableName", "statement"]
