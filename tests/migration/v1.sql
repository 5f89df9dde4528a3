BEGIN TRANSACTION;
CREATE TABLE attempts (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    number INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    token TEXT NOT NULL UNIQUE,
    backend TEXT NOT NULL,
    node TEXT NOT NULL,
    gpu_uuids TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    launcher TEXT NOT NULL,
    handle TEXT NOT NULL,
    folder TEXT NOT NULL,
    started_at FLOAT,
    walltime_s INTEGER NOT NULL,
    grace_s INTEGER NOT NULL,
    ends_by FLOAT,
    stop_kind TEXT NOT NULL,
    stop_at FLOAT,
    stop_grace_s INTEGER,
    stop_written INTEGER NOT NULL,
    stop_delivered INTEGER NOT NULL,
    lost_at FLOAT,
    ended_at FLOAT,
    end_reason TEXT NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    cause TEXT NOT NULL,
    cause_text TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    checkpoint_step INTEGER,
    resume_from TEXT NOT NULL,
    cpu_seconds FLOAT NOT NULL,
    max_rss_mib FLOAT NOT NULL,
    PRIMARY KEY (job_id, number)
);
INSERT INTO "attempts" VALUES(1,1,0,'token-1-1','local','node1','["GPU-0"]',1,1,0,1001.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/1/1',1002.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,1100.0,'succeeded',0,NULL,'','','/c/9',9,'',0.0,0.0);
INSERT INTO "attempts" VALUES(2,1,0,'token-2-1','local','node1','["GPU-0"]',1,1,0,1100.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/2/1',1101.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,1101.0,'failed',NULL,11,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(2,2,0,'token-2-2','local','node1','["GPU-0"]',1,1,0,1101.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/2/2',1102.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,1102.0,'failed',NULL,11,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(2,3,0,'token-2-3','local','node1','["GPU-0"]',1,1,0,1102.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/2/3',1103.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,1103.0,'failed',NULL,11,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(2,4,0,'token-2-4','local','node1','["GPU-0"]',1,1,0,1103.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/2/4',1104.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,1104.0,'failed',NULL,11,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(3,1,0,'token-3-1','local','node1','["GPU-0"]',1,1,0,1200.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/3/1',1201.0,3600,60,NULL,'cancel',1201.0,NULL,0,0,NULL,1202.0,'cancelled',75,NULL,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(4,1,0,'token-4-1','local','node1','["GPU-0"]',1,1,0,1300.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/4/1',1301.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,NULL,'',NULL,NULL,'','','/c/5',5,'',0.0,0.0);
INSERT INTO "attempts" VALUES(5,1,0,'token-5-1','local','node1','["GPU-1"]',1,1,0,1300.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/5/1',1301.0,3600,60,NULL,'preempt',1400.0,NULL,0,0,NULL,NULL,'',NULL,NULL,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(6,1,0,'token-6-1','local','node1','["GPU-2"]',1,1,0,1300.0,'["h", "b", 1, 2]','','/jobs/6/1',NULL,3600,60,NULL,'',NULL,NULL,0,0,NULL,NULL,'',NULL,NULL,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(7,1,0,'token-7-1','local','node1','[]',0,1,0,1300.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/7/1',1301.0,3600,60,NULL,'',NULL,NULL,0,0,NULL,1301.0,'failed',1,NULL,'','','',NULL,'',0.0,0.0);
INSERT INTO "attempts" VALUES(8,1,0,'token-8-1','local','node1','[]',0,1,0,1300.0,'["h", "b", 1, 2]','["h", "b", 3, 4]','/jobs/8/1',1301.0,3600,60,NULL,'stop',1301.0,NULL,0,0,NULL,1302.0,'stopped',0,NULL,'','','',NULL,'',0.0,0.0);
CREATE TABLE events (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    number INTEGER,
    at FLOAT NOT NULL,
    actor TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(2,2,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(3,3,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(4,4,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(5,5,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(6,6,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(7,7,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(8,8,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(9,9,0,0,0,NULL,1000.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(10,1,1,0,0,NULL,1001.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(11,1,1,0,0,1,1002.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(12,1,1,0,0,NULL,1100.0,'scheduler','ended','finished (exit 0)','{"exit_code": 0, "signal": null, "charged": false, "progress": false, "checkpoint": "/c/9", "checkpoint_step": 9}');
INSERT INTO "events" VALUES(13,2,1,0,0,NULL,1100.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(14,2,1,0,0,1,1101.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(15,2,1,0,0,NULL,1101.0,'scheduler','ended','killed by SIGSEGV','{"exit_code": null, "signal": 11, "charged": true, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(16,2,2,0,0,NULL,1101.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(17,2,2,0,0,1,1102.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(18,2,2,0,0,NULL,1102.0,'scheduler','ended','killed by SIGSEGV','{"exit_code": null, "signal": 11, "charged": true, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(19,2,3,0,0,NULL,1102.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(20,2,3,0,0,1,1103.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(21,2,3,0,0,NULL,1103.0,'scheduler','ended','killed by SIGSEGV','{"exit_code": null, "signal": 11, "charged": true, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(22,2,4,0,0,NULL,1103.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(23,2,4,0,0,1,1104.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(24,2,4,0,0,NULL,1104.0,'scheduler','ended','killed by SIGSEGV; that was failure 4 of at most 3 forgiven','{"exit_code": null, "signal": 11, "charged": true, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(25,3,1,0,0,NULL,1200.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(26,3,1,0,0,1,1201.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(27,3,1,0,0,NULL,1201.0,'ann','stop_requested','cancel','{}');
INSERT INTO "events" VALUES(28,3,1,0,0,NULL,1202.0,'scheduler','ended','cancelled (exit 75)','{"exit_code": 75, "signal": null, "charged": false, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(29,4,1,0,0,NULL,1300.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-0"], "cpus": 1}');
INSERT INTO "events" VALUES(30,4,1,0,0,1,1301.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(31,4,1,0,0,2,1310.0,'supervisor','checkpoint','','{"path": "/c/5", "step": 5}');
INSERT INTO "events" VALUES(32,5,1,0,0,NULL,1300.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-1"], "cpus": 1}');
INSERT INTO "events" VALUES(33,5,1,0,0,1,1301.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(34,6,1,0,0,NULL,1300.0,'scheduler','claimed','node1','{"node": "node1", "gpus": ["GPU-2"], "cpus": 1}');
INSERT INTO "events" VALUES(35,7,1,0,0,NULL,1300.0,'scheduler','claimed','node1','{"node": "node1", "gpus": [], "cpus": 1}');
INSERT INTO "events" VALUES(36,7,1,0,0,1,1301.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(37,7,1,0,0,NULL,1301.0,'scheduler','ended','exit 1','{"exit_code": 1, "signal": null, "charged": true, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(38,8,1,0,0,NULL,1300.0,'scheduler','claimed','node1','{"node": "node1", "gpus": [], "cpus": 1}');
INSERT INTO "events" VALUES(39,8,1,0,0,1,1301.0,'supervisor','started','','{"supervisor": "[\"h\", \"b\", 3, 4]"}');
INSERT INTO "events" VALUES(40,8,1,0,0,NULL,1301.0,'ann','stop_requested','stop','{}');
INSERT INTO "events" VALUES(41,8,1,0,0,NULL,1302.0,'scheduler','ended','stopped by the user (exit 0)','{"exit_code": 0, "signal": null, "charged": false, "progress": false, "checkpoint": "", "checkpoint_step": null}');
INSERT INTO "events" VALUES(42,5,1,0,0,NULL,1400.0,'scheduler','stop_requested','preempted for job 9','{}');
INSERT INTO "events" VALUES(43,10,0,0,0,NULL,1500.0,'ann','submitted','','{}');
INSERT INTO "events" VALUES(44,11,0,0,0,NULL,1500.0,'ann','submitted','','{}');
CREATE TABLE gpus (
    uuid TEXT NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    idx INTEGER NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    memory_mib INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
);
INSERT INTO "gpus" VALUES('GPU-0','node1',0,'NVIDIA H100','h100',81559,'up','');
INSERT INTO "gpus" VALUES('GPU-1','node1',1,'NVIDIA H100','h100',81559,'up','');
INSERT INTO "gpus" VALUES('GPU-2','node1',2,'NVIDIA H100','h100',81559,'up','');
INSERT INTO "gpus" VALUES('GPU-3','node1',3,'NVIDIA H100','h100',81559,'drained','a process cannot be killed');
CREATE TABLE jobs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    spec_id INTEGER NOT NULL REFERENCES specs (id),
    array_id INTEGER,
    array_index INTEGER,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    project TEXT NOT NULL,
    job_class TEXT NOT NULL,
    priority INTEGER NOT NULL,
    preemptible INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    gpus INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    walltime_s INTEGER NOT NULL,
    grace_s INTEGER NOT NULL,
    min_runtime_s INTEGER NOT NULL,
    own_min_runtime_s INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    reason_text TEXT NOT NULL,
    hold TEXT NOT NULL,
    wish TEXT NOT NULL,
    begin_at FLOAT NOT NULL,
    not_before FLOAT NOT NULL,
    submitted_at FLOAT NOT NULL,
    state_since FLOAT NOT NULL,
    started_at FLOAT,
    ended_at FLOAT,
    attempt INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    interruptions INTEGER NOT NULL,
    delays INTEGER NOT NULL,
    gpu_seconds FLOAT NOT NULL,
    progress_step INTEGER,
    progress_identity TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    checkpoint_step INTEGER,
    checkpoint_at FLOAT,
    exit_code INTEGER,
    signal INTEGER,
    end_reason TEXT NOT NULL,
    end_text TEXT NOT NULL,
    launch_failures INTEGER NOT NULL,
    version INTEGER NOT NULL
);
INSERT INTO "jobs" VALUES(1,1,NULL,NULL,'w0','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'succeeded','','','','',0.0,0.0,1000.0,1100.0,1002.0,1100.0,1,1,0,0,0,99.0,9,'','/c/9',9,NULL,0,NULL,'succeeded','finished (exit 0)',0,4);
INSERT INTO "jobs" VALUES(2,1,NULL,NULL,'w1','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'failed','','','','',0.0,0.0,1000.0,1104.0,1101.0,1104.0,4,4,4,0,4,4.0,NULL,'','',NULL,NULL,NULL,11,'failed','killed by SIGSEGV; that was failure 4 of at most 3 forgiven',0,13);
INSERT INTO "jobs" VALUES(3,1,NULL,NULL,'w2','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'cancelled','','','','',0.0,0.0,1000.0,1202.0,1201.0,1202.0,1,1,0,0,0,0.0,NULL,'','',NULL,NULL,75,NULL,'cancelled','cancelled (exit 75)',0,6);
INSERT INTO "jobs" VALUES(4,1,NULL,NULL,'w3','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'running','','','','',0.0,0.0,1000.0,1301.0,1301.0,NULL,1,1,1,0,0,0.0,NULL,'','/c/5',5,1310.0,NULL,NULL,'','',0,3);
INSERT INTO "jobs" VALUES(5,1,NULL,NULL,'w4','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'stopping','','','','',0.0,0.0,1000.0,1400.0,1301.0,NULL,1,1,1,0,0,0.0,NULL,'','',NULL,NULL,NULL,NULL,'','',0,4);
INSERT INTO "jobs" VALUES(6,1,NULL,NULL,'w5','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'initializing','','','','',0.0,0.0,1000.0,1300.0,NULL,NULL,1,1,1,0,0,0.0,NULL,'','',NULL,NULL,NULL,NULL,'','',0,2);
INSERT INTO "jobs" VALUES(7,1,NULL,NULL,'w6','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'queued','BackOff','','','',0.0,1311.0,1000.0,1301.0,1301.0,NULL,1,1,1,0,1,0.0,NULL,'','',NULL,NULL,1,NULL,'failed','exit 1',0,4);
INSERT INTO "jobs" VALUES(8,1,NULL,NULL,'w7','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'queued','Held','','stop','',0.0,0.0,1000.0,1302.0,1301.0,NULL,1,1,0,0,0,0.0,NULL,'','',NULL,NULL,0,NULL,'stopped','stopped by the user (exit 0)',0,6);
INSERT INTO "jobs" VALUES(9,1,NULL,NULL,'w8','ann',1000,'vision','ondemand',50,0,1,1,1,0,'',3600,60,0,0,'queued','Resources','needs 1 GPU, 0 free','','',0.0,0.0,1000.0,1000.0,NULL,NULL,0,0,0,0,0,0.0,NULL,'','',NULL,NULL,NULL,NULL,'','',0,1);
INSERT INTO "jobs" VALUES(10,2,NULL,NULL,'job','ann',1000,'default','ondemand',50,0,1,0,1,0,'',0,60,0,0,'queued','Held','held; ''spool release'' lets it go','user','',0.0,0.0,1500.0,1500.0,NULL,NULL,0,0,0,0,0,0.0,NULL,'','',NULL,NULL,NULL,NULL,'','',0,1);
INSERT INTO "jobs" VALUES(11,3,NULL,NULL,'job','ann',1000,'default','ondemand',50,0,1,0,1,0,'',0,60,0,0,'queued','BeginTime','','','',5000.0,0.0,1500.0,1500.0,NULL,NULL,0,0,0,0,0,0.0,NULL,'','',NULL,NULL,NULL,NULL,'','',0,1);
CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO "meta" VALUES('epoch','1');
INSERT INTO "meta" VALUES('last_tick','1000.0');
CREATE TABLE nodes (
    name TEXT NOT NULL PRIMARY KEY,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    seen_at FLOAT NOT NULL
);
INSERT INTO "nodes" VALUES('node1','node1','boot',64,512000,'up','',1000.0);
CREATE TABLE projects (
    name TEXT NOT NULL PRIMARY KEY,
    quota FLOAT,
    limit_gpus FLOAT,
    weight FLOAT NOT NULL,
    parent TEXT NOT NULL
);
INSERT INTO "projects" VALUES('default',NULL,NULL,1.0,'');
INSERT INTO "projects" VALUES('lab',8.0,16.0,2.0,'');
INSERT INTO "projects" VALUES('vision',4.0,NULL,1.0,'lab');
CREATE TABLE reservations (
    job_id INTEGER NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    gpu_uuids TEXT NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    until FLOAT NOT NULL
);
INSERT INTO "reservations" VALUES(9,'node1','["GPU-1"]',1,0,1400.0,2000.0);
CREATE TABLE specs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    body TEXT NOT NULL
);
INSERT INTO "specs" VALUES(1,'{"command":["python","a b''c\"d\n\u00e9$x;.py","{resume}"],"cwd":"/home/\u00e9","env":{"SECRET":"x\ny"},"umask":63,"launcher":"plain","nproc":0,"python":"","module":false,"gpus_per_node":0,"output":"","error":"","stop_signal":"USR2","resume_arg":"--resume_from_checkpoint","checkpoint_dir":"/c","checkpoint_format":"","backoff_limit":3,"backoff_reset":"never","max_attempts":100,"max_gpu_hours":0.0,"on_timeout":"","stopped_exit_0":"requeue","kind":"submit","comment":""}');
INSERT INTO "specs" VALUES(2,'{"command":["true"],"cwd":"/","env":{},"umask":63,"launcher":"plain","nproc":0,"python":"","module":false,"gpus_per_node":0,"output":"","error":"","stop_signal":"USR2","resume_arg":"--resume_from_checkpoint","checkpoint_dir":"","checkpoint_format":"","backoff_limit":3,"backoff_reset":"never","max_attempts":100,"max_gpu_hours":0.0,"on_timeout":"","stopped_exit_0":"requeue","kind":"submit","comment":""}');
INSERT INTO "specs" VALUES(3,'{"command":["true"],"cwd":"/","env":{},"umask":63,"launcher":"plain","nproc":0,"python":"","module":false,"gpus_per_node":0,"output":"","error":"","stop_signal":"USR2","resume_arg":"--resume_from_checkpoint","checkpoint_dir":"","checkpoint_format":"","backoff_limit":3,"backoff_reset":"never","max_attempts":100,"max_gpu_hours":0.0,"on_timeout":"","stopped_exit_0":"requeue","kind":"submit","comment":""}');
CREATE TABLE streams (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    next_number INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt, incarnation, rank)
);
INSERT INTO "streams" VALUES(1,1,0,0,100,2);
INSERT INTO "streams" VALUES(2,1,0,0,100,2);
INSERT INTO "streams" VALUES(2,2,0,0,100,2);
INSERT INTO "streams" VALUES(2,3,0,0,100,2);
INSERT INTO "streams" VALUES(2,4,0,0,100,2);
INSERT INTO "streams" VALUES(3,1,0,0,100,2);
INSERT INTO "streams" VALUES(4,1,0,0,200,3);
INSERT INTO "streams" VALUES(5,1,0,0,100,2);
INSERT INTO "streams" VALUES(7,1,0,0,100,2);
INSERT INTO "streams" VALUES(8,1,0,0,100,2);
CREATE TABLE usage (
    day TEXT NOT NULL,
    user TEXT NOT NULL,
    project TEXT NOT NULL,
    job_class TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    gpu_seconds FLOAT NOT NULL,
    cpu_seconds FLOAT NOT NULL,
    PRIMARY KEY (day, user, project, job_class)
);
INSERT INTO "usage" VALUES('1970-01-01','ann','vision','ondemand',8,103.0,0.0);
CREATE INDEX jobs_state ON jobs (state);
CREATE INDEX jobs_array ON jobs (array_id, array_index) WHERE array_id IS NOT NULL;
CREATE INDEX attempts_live ON attempts (job_id) WHERE ended_at IS NULL;
CREATE INDEX events_job ON events (job_id, id);
CREATE UNIQUE INDEX events_once ON events (job_id, attempt, incarnation, rank, number) WHERE number IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('specs',3);
INSERT INTO "sqlite_sequence" VALUES('jobs',11);
INSERT INTO "sqlite_sequence" VALUES('events',44);
COMMIT;
PRAGMA user_version = 1;
