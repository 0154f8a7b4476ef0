"""backup and restore as Spark jobs: what the functions of the core do, spread over tasks."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from tests.support.machines.backup_chain import CHANGES, NAME, make_table, state_of


def test_backups_and_restores_in_tasks(spark: SparkSession, tmp_path):
    """Full and incremental, each restores exactly; the two kinds of jobs take over from another."""
    client = kudulite.connect(tmp_path / "db", background_maintenance=False)
    path, target = str(tmp_path / "db" / NAME), str(tmp_path / "set")
    states = []
    make_table(client)
    for number, change in enumerate([*CHANGES, None]):
        table = client.table(NAME)
        if number == 2:
            with kudulite.begin_backup(table, target) as job:
                job.pieces[0].run()
        backup = kudulite_spark.backup(
            spark, path, target, content_hash=number != 2, task_count=2 if number else None
        )
        assert backup.is_full == (number == 0)
        states.append((backup, state_of(table)))
        if change is not None:
            change(client)
    for backup, state in states[-1:]:
        place = str(tmp_path / "db" / backup.id)
        with kudulite.begin_restore(target, place, at=backup.id) as job:
            step = next(job.steps())
            step.commit([step.stage(index) for index in range(step.task_count)])
        restored = kudulite_spark.restore(spark, f"file:{target}", place, at=backup.id)
        assert state_of(restored) == state
        restored.check().raise_if_bad()
    damaged = states[0][0].path / states[0][0].files[0].ref.name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(PySparkException, match=damaged.name):
        kudulite_spark.restore(spark, target, str(tmp_path / "db" / "x"))
    assert not (tmp_path / "db" / "x").exists()
