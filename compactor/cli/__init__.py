"""The command line.

Exit codes: 0 done, 1 failed, 2 usage, 3 refused (there was nothing to compact, or it is never compacted).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from compactor.acid.partition_name import partition_values
from compactor.cli import plan, show, trigger
from compactor.cli.daemon import Mode, Role, run_roles
from compactor.cli.installation import VERSION, Installation, Options
from compactor.cli.render import print_error, say
from compactor.demo.run import run_demo
from compactor.errors import CompactorError, ConfigError, UsageError
from compactor.metastore import history
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.schema import InitOutcome, init_db
from compactor.service.requests import WAIT_TIMEOUT_S, Wish
from compactor.sql.statements import AbortCompactions, AbortTransactions, ShowLocks

USAGE_ERROR = 2
_PIPE_WIDTH = 240
_PAGE_WIDTH = 110

app = typer.Typer(
    name="compactor",
    help="Compacts Hive ACID tables with Spark: no HiveServer2, Tez or MapReduce needed.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
show_app = typer.Typer(help="List compactions, transactions, locks or tables.", no_args_is_help=True)
app.add_typer(show_app, name="show")
abort_app = typer.Typer(help="End transactions, or requests for compactions.", no_args_is_help=True)
app.add_typer(abort_app, name="abort")

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings; default ./compactor.toml.")]
HiveSite = Annotated[Path | None, typer.Option("--hive-site", metavar="FILE", help="An existing hive-site.xml.")]
Assign = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting, e.g. worker.threads=2.")
]
Once = Annotated[bool, typer.Option("--once", help="One cycle, then end.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when nothing is queued, working or deletable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def _installation(config: Path | None, hive_site: Path | None, assign: list[str] | None) -> Installation:
    return Installation(Options(config=config, hive_site=hive_site, assignments=tuple(assign or ())))


def _console() -> Console:
    """As wide as the terminal; wide enough for every table when the output goes to a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def _mode(once: bool, until_idle: bool) -> Mode:
    if once and until_idle:
        raise UsageError("--once and --until-idle exclude each other")
    return Mode.ONCE if once else Mode.UNTIL_IDLE if until_idle else Mode.FOREVER


@app.command("init-db")
def init_db_command(config: Config = None, hive_site: HiveSite = None, assign: Assign = None) -> None:
    """Create Hive's tables in an empty database, or add what a later release needs. Doing it twice changes nothing."""
    installation = _installation(config, hive_site, assign)
    outcome = init_db(installation.unchecked_database, warehouse=installation.settings.warehouse)
    text = "was there already" if outcome is InitOutcome.ALREADY_THERE else f"was {outcome.value}"
    url = installation.unchecked_database.engine.url.render_as_string(hide_password=True)
    say(_console(), f"The metastore {text}: {url}")


@app.command("demo")
def demo_command(
    directory: Annotated[
        Path, typer.Option(help="Where to put metastore, warehouse and log; replaced if a demo's.")
    ] = Path("demo-warehouse"),
) -> None:
    """Compact tables that Hive wrote, then stream a year of flights, and show what it does to reading."""
    run_demo(Console() if sys.stdout.isatty() else Console(width=_PAGE_WIDTH), directory)


@app.command("run")
def run_command(
    once: Once = False,
    until_idle: UntilIdle = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Run every role that the settings turn on, in one process."""
    installation = _installation(config, hive_site, assign)
    settings = installation.settings
    wanted = {
        Role.INITIATOR: settings.initiator.on,
        Role.WORKER: settings.worker.threads > 0,
        Role.CLEANER: settings.cleaner.on,
        Role.HOUSEKEEPER: settings.housekeeper.on,
    }
    raise typer.Exit(run_roles(installation, [r for r, on in wanted.items() if on], _mode(once, until_idle)))


def _role_command(role: Role, text: str) -> None:
    @app.command(role.value, help=text)
    def command(
        once: Once = False,
        until_idle: UntilIdle = False,
        config: Config = None,
        hive_site: HiveSite = None,
        assign: Assign = None,
    ) -> None:
        installation = _installation(config, hive_site, assign)
        raise typer.Exit(run_roles(installation, [role], _mode(once, until_idle)))


_role_command(Role.INITIATOR, "Find tables and partitions that need a compaction, and queue them.")
_role_command(Role.WORKER, "Take compactions from the queue and carry them out with Spark.")
_role_command(Role.CLEANER, "Remove what compactions replaced, once no reader needs it.")
_role_command(Role.HOUSEKEEPER, "Time out dead transactions and keep the metastore's tables short.")


def _kind(name: str) -> CompactionType:
    kinds = {k.name.lower(): k for k in (CompactionType.MINOR, CompactionType.MAJOR, CompactionType.REBALANCE)}
    if name not in kinds:
        raise UsageError(f"--type {name!r} is none of {', '.join(kinds)}")
    return kinds[name]


@app.command("compact")
def compact_command(
    table: Annotated[str, typer.Argument(metavar="DB.TABLE")],
    partition: Annotated[str, typer.Option(metavar="p=x/q=y", help="Which partition; values escaped as in Hive.")] = "",
    kind: Annotated[str, typer.Option("--type", metavar="minor|major|rebalance", help="How deep.")] = "major",
    buckets: Annotated[int | None, typer.Option(help="Rebalance: how many; default: as many as there are.")] = None,
    order_by: Annotated[
        str | None, typer.Option(metavar='"a DESC, b"', help="Rebalance: order all rows by these columns.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Longest time to wait.")] = WAIT_TIMEOUT_S,
    pool: Annotated[str | None, typer.Option(help="Queue it for the workers of this pool.")] = None,
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Ask for a compaction of a table or partition."""
    wish = Wish(
        table=TableName.parse(table),
        type=_kind(kind),
        partition=partition_values(partition) if partition else {},
        pool=pool,
        buckets=buckets,
        order_by=order_by,
    )
    installation = _installation(config, hive_site, assign)
    raise typer.Exit(trigger.trigger(installation, _console(), wish, wait=wait, timeout_s=timeout, as_json=as_json))


@app.command("sql")
def sql_command(
    statements: Annotated[str | None, typer.Argument(metavar="STATEMENTS")] = None,
    file: Annotated[str | None, typer.Option("-f", "--file", metavar="FILE", help="'-' is standard input.")] = None,
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Run ALTER TABLE … COMPACT, SHOW COMPACTIONS|TRANSACTIONS|LOCKS and ABORT …; without statements, a prompt."""
    if statements is not None and file is not None:
        raise UsageError("give statements or a file, not both")
    installation = _installation(config, hive_site, assign)
    if statements is None and file is None and not sys.stdin.isatty():
        file = "-"
    text = trigger.read_statements(file) if file is not None else statements
    if text is None:
        raise typer.Exit(trigger.sql_prompt(installation, _console()))
    raise typer.Exit(trigger.run_sql(installation, _console(), text, as_json=as_json))


@app.command("plan")
def plan_command(
    name: Annotated[str, typer.Argument(metavar="DB.TABLE[/PARTITION]")],
    kind: Annotated[str | None, typer.Option("--type", metavar="minor|major|rebalance", help="Only this one.")] = None,
    buckets: Annotated[int | None, typer.Option(help="Rebalance: how many; default: as many as there are.")] = None,
    order_by: Annotated[
        str | None, typer.Option(metavar='"a DESC, b"', help="Rebalance: order all rows by these columns.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Show what a minor and a major compaction, or a rebalance, would cost and bring, and what the rules choose."""
    if kind != "rebalance" and (buckets is not None or order_by is not None):
        raise UsageError("--buckets and --order-by are for --type rebalance")
    wish = None if kind is None else plan.PlanWish(type=_kind(kind), buckets=buckets, order_by=order_by)
    installation = _installation(config, hive_site, assign)
    raise typer.Exit(plan.show_plan(installation, _console(), name, wish=wish, as_json=as_json))


@show_app.command("compactions")
def show_compactions_command(
    state: Annotated[str | None, typer.Option(help="For example 'working' or 'failed'.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many rows.")] = None,
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Queue and history, as SHOW COMPACTIONS does."""
    states = {s.name.lower().replace("_", " "): s for s in CompactionState}
    if state is not None and state not in states:
        raise UsageError(f"--state {state!r} is none of {', '.join(states)}")
    filters = history.CompactionFilter(state=states[state] if state else None)
    rows = history.show_compactions(_installation(config, hive_site, assign).db, filters=filters, limit=limit)
    trigger.print_compactions(_console(), rows, as_json=as_json)


@show_app.command("transactions")
def show_transactions_command(
    as_json: AsJson = False, config: Config = None, hive_site: HiveSite = None, assign: Assign = None
) -> None:
    """Open and aborted transactions."""
    installation = _installation(config, hive_site, assign)
    show.print_transactions(installation, _console(), show.transactions(installation), as_json=as_json)


@show_app.command("locks")
def show_locks_command(
    name: Annotated[str | None, typer.Argument(metavar="[DB.TABLE[/PARTITION]]")] = None,
    database: Annotated[str | None, typer.Option(metavar="DB", help="Of this database and everything in it.")] = None,
    extended: Annotated[bool, typer.Option("--extended", help="Heartbeats and agents too.")] = False,
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Locks, held and waited for."""
    if name is not None and database is not None:
        raise UsageError("give a table or a database, not both")
    table, _, partition = (name or "").partition("/")
    statement = ShowLocks(
        database=database.lower() if database else None,
        table=TableName.parse(table) if table else None,
        partition=tuple(partition_values(partition).items()) if partition else None,
        extended=extended,
    )
    rows = show.locks_of(_installation(config, hive_site, assign), statement)
    show.print_locks(_console(), rows, extended=extended, as_json=as_json)


@abort_app.command("transactions")
def abort_transactions_command(
    ids: Annotated[list[int], typer.Argument(metavar="ID…")],
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Abort open transactions; a compaction that runs is stopped by aborting its transaction."""
    installation = _installation(config, hive_site, assign)
    statement = AbortTransactions(ids=tuple(ids))
    raise typer.Exit(trigger.abort(installation, _console(), statement, as_json=as_json))


@abort_app.command("compactions")
def abort_compactions_command(
    ids: Annotated[list[int], typer.Argument(metavar="ID…")],
    as_json: AsJson = False,
    config: Config = None,
    hive_site: HiveSite = None,
    assign: Assign = None,
) -> None:
    """Abort requests that no worker has taken yet."""
    installation = _installation(config, hive_site, assign)
    raise typer.Exit(trigger.abort(installation, _console(), AbortCompactions(ids=tuple(ids)), as_json=as_json))


@show_app.command("tables")
def show_tables_command(
    as_json: AsJson = False, config: Config = None, hive_site: HiveSite = None, assign: Assign = None
) -> None:
    """Transactional tables with what lies in their directories."""
    show.show_tables(_installation(config, hive_site, assign), _console(), as_json=as_json)


def _print_version(wanted: bool) -> None:
    if wanted:
        _console().print(VERSION, highlight=False)
        raise typer.Exit


@app.callback()
def common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compacts Hive ACID tables with Spark: no HiveServer2, Tez or MapReduce needed."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point of `compactor`: every error on purpose becomes one line, a hint and an exit code."""
    try:
        app(args=arguments, prog_name="compactor")
        sys.exit(trigger.DONE)
    except CompactorError as error:
        print_error(Console(stderr=True), error)
        sys.exit(USAGE_ERROR if isinstance(error, UsageError | ConfigError) else trigger.FAILED)


def role_main(role: str) -> NoReturn:
    """Entry point of `compactor-<role>`: the role's command without its name."""
    main([role, *sys.argv[1:]])
