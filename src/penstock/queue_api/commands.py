"""The commands of the queue API: one table that is served, documented and tested.

Each row has a name, the fields, the answer and the implementation. The names and fields are those of specification 003 and of the
SDKs; several names may mean the same command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.api.queues import ProjectQueues
from penstock.queue_api import replies, requests
from penstock.queue_api.topics import ProjectTopics
from penstock.values.policy import QueueConfig

Run = Callable[[ProjectQueues, Any], Awaitable[object]]  # the fields of each command have their own type


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `fields` is the type of its payload, `answer` the type of its answer (several, if it depends)."""

    name: str
    fields: type[requests.Fields]
    answer: tuple[type, ...]
    run: Run


async def _create(queues: ProjectQueues, fields: requests.Create) -> replies.Created:
    queue = fields.target()
    return replies.Created(queue=queue, created=await queues.create(queue, fields.settings()))


async def _update(queues: ProjectQueues, fields: requests.Update) -> QueueConfig:
    return await queues.update_queue(fields.queue, fields.given())


async def _delete(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Deleted:
    return replies.Deleted(deleted=await queues.delete(fields.queue))


async def _list(queues: ProjectQueues, _: requests.NoFields) -> replies.QueueNames:
    return replies.QueueNames(queues=await queues.list_queues())


async def _exists(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Exists:
    return replies.Exists(exists=queues.exists(fields.queue))


async def _config(queues: ProjectQueues, fields: requests.QueueRequest) -> QueueConfig:
    return await queues.get_queue(fields.queue)


async def _publish(queues: ProjectQueues, fields: requests.Publish) -> replies.Published:
    result = await queues.publish(fields.queue, fields.new_message())
    return replies.Published(message_id=result.message_id, position=result.position)


async def _publish_batch(queues: ProjectQueues, fields: requests.PublishBatch) -> replies.PublishedBatch:
    ids = await queues.publish_many(fields.queue, [draft.new_message() for draft in fields.messages])
    return replies.PublishedBatch(message_ids=ids, count=len(ids))


async def _consume(queues: ProjectQueues, fields: requests.Consume) -> replies.Consumed | replies.SdkConsumed:
    found = await queues.lease(
        fields.queue,
        fields.consumer_id,
        wait=fields.timeout,
        ack_deadline=fields.ack_deadline,
        prefetch=fields.prefetch,
    )
    # The SDKs call the whole message `message`, the specification its payload: a caller that sends a consumer id is an SDK.
    if fields.consumer_id is not None:
        return replies.SdkConsumed(message=replies.sdk_message(found[0]) if found else None)
    return replies.consumed(found[0]) if found else replies.Consumed()


async def _consume_batch(queues: ProjectQueues, fields: requests.ConsumeBatch) -> replies.ConsumedBatch:
    found = await queues.lease(
        fields.queue,
        fields.consumer_id,
        max_messages=fields.max_messages,
        wait=fields.timeout,
        ack_deadline=fields.ack_deadline,
        prefetch=fields.prefetch,
    )
    return replies.ConsumedBatch(messages=[replies.consumed(one) for one in found], count=len(found))


async def _ack(queues: ProjectQueues, fields: requests.MessageRequest) -> replies.Done:
    queues.ack(fields.queue, fields.message_id, fields.consumer_id)
    return replies.Done()


async def _ack_batch(queues: ProjectQueues, fields: requests.MessagesRequest) -> replies.Acked:
    failed = queues.ack_many(fields.queue, fields.message_ids, fields.consumer_id)
    settled = len(set(fields.message_ids)) - len(failed)
    return replies.Acked(success=not failed, acked=settled, failed=replies.failures(failed))


async def _nack(queues: ProjectQueues, fields: requests.Nack) -> replies.Nacked:
    result = queues.nack(fields.queue, fields.message_id, fields.requeue, consumer=fields.consumer_id, error=fields.error)
    return replies.Nacked(success=result.success, action=result.action)


async def _nack_batch(queues: ProjectQueues, fields: requests.NackBatch) -> replies.NackedBatch:
    failed = queues.nack_many(fields.queue, fields.message_ids, fields.requeue, consumer=fields.consumer_id, error=fields.error)
    settled = len(set(fields.message_ids)) - len(failed)
    return replies.NackedBatch(success=not failed, nacked=settled, failed=replies.failures(failed))


async def _extend(queues: ProjectQueues, fields: requests.Extend) -> replies.Done:
    await queues.extend_message(fields.queue, fields.message_id, fields.seconds, fields.consumer_id)
    return replies.Done()


async def _release(queues: ProjectQueues, fields: requests.ReleaseConsumer) -> replies.Released:
    return replies.Released(released=queues.release_consumer(fields.queue, fields.consumer_id))


async def _peek(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Consumed:
    return replies.peeked(await queues.peek_queue(fields.queue))


async def _stats(queues: ProjectQueues, fields: requests.QueueRequest) -> object:
    return replies.stats(await queues.queue_stats(fields.queue))


async def _consumers(queues: ProjectQueues, fields: requests.ListConsumers) -> replies.Consumers:
    found = await queues.queue_consumers(fields.queue, fields.max_messages)
    return replies.Consumers(consumers=found, count=len(found))


async def _purge(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Purged:
    return replies.Purged(purged=await queues.purge_queue(fields.queue))


async def _pause(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Done:
    await queues.pause_queue(fields.queue)
    return replies.Done()


async def _resume(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Done:
    await queues.resume_queue(fields.queue)
    return replies.Done()


async def _dead_letters(queues: ProjectQueues, fields: requests.DeadLetters) -> replies.DeadLettersReply:
    letters = [replies.letter(dead) for dead in await queues.list_dead_letters(fields.queue, fields.limit)]
    return replies.DeadLettersReply(dead_letters=letters, count=len(letters))


async def _retry(queues: ProjectQueues, fields: requests.DeadLetterRequest) -> replies.Done:
    await queues.retry_dead_letter(fields.queue, fields.message_id)
    return replies.Done()


async def _redrive(queues: ProjectQueues, fields: requests.Redrive) -> replies.Redriven:
    return replies.Redriven(redriven=await queues.redrive_dead_letters(fields.queue, fields.limit))


async def _purge_dead_letters(queues: ProjectQueues, fields: requests.QueueRequest) -> replies.Purged:
    return replies.Purged(purged=await queues.purge_dead_letters(fields.queue))


async def _publish_to_topic(queues: ProjectQueues, fields: requests.TopicPublishRequest) -> replies.PublishedToTopic:
    return await ProjectTopics(queues).publish(fields.topic, fields.payload)


async def _topics(queues: ProjectQueues, _: requests.NoFields) -> replies.TopicNames:
    names = ProjectTopics(queues).list()
    return replies.TopicNames(topics=names, count=len(names))


async def _create_room(queues: ProjectQueues, fields: requests.NewRoom) -> replies.RoomCreated:
    return replies.RoomCreated(room=fields.room, created=await ProjectTopics(queues).create(fields.room))


async def _delete_room(queues: ProjectQueues, fields: requests.Room) -> replies.Deleted:
    return replies.Deleted(deleted=await ProjectTopics(queues).delete(fields.room))


async def _rooms(queues: ProjectQueues, _: requests.NoFields) -> replies.RoomNames:
    names = ProjectTopics(queues).list()
    return replies.RoomNames(rooms=names, count=len(names))


async def _publish_event(queues: ProjectQueues, fields: requests.Event) -> replies.EventPublished:
    return await ProjectTopics(queues).publish_event(fields.room, fields.event, fields.data)


async def _read_room(queues: ProjectQueues, fields: requests.ReadRoom) -> replies.Events:
    return await ProjectTopics(queues).read(fields.room, fields.from_offset, fields.limit)


async def _room_stats(queues: ProjectQueues, fields: requests.Room) -> replies.RoomStats:
    return ProjectTopics(queues).stats(fields.room)


COMMANDS: dict[str, Command] = {
    name: Command(name, fields, answer if isinstance(answer, tuple) else (answer,), run)
    for names, fields, answer, run in (
        ("queue.create", requests.Create, replies.Created, _create),
        ("queue.update", requests.Update, QueueConfig, _update),
        ("queue.delete", requests.QueueRequest, replies.Deleted, _delete),
        ("queue.list", requests.NoFields, replies.QueueNames, _list),
        ("queue.exists", requests.QueueRequest, replies.Exists, _exists),
        ("queue.config", requests.QueueRequest, QueueConfig, _config),
        ("queue.publish", requests.Publish, replies.Published, _publish),
        ("queue.publish_batch", requests.PublishBatch, replies.PublishedBatch, _publish_batch),
        ("queue.consume", requests.Consume, (replies.Consumed, replies.SdkConsumed), _consume),
        ("queue.consume_batch", requests.ConsumeBatch, replies.ConsumedBatch, _consume_batch),
        ("queue.ack", requests.MessageRequest, replies.Done, _ack),
        ("queue.ack_batch", requests.MessagesRequest, replies.Acked, _ack_batch),
        ("queue.nack", requests.Nack, replies.Nacked, _nack),
        ("queue.nack_batch", requests.NackBatch, replies.NackedBatch, _nack_batch),
        ("queue.extend", requests.Extend, replies.Done, _extend),
        ("queue.release_consumer", requests.ReleaseConsumer, replies.Released, _release),
        ("queue.peek", requests.QueueRequest, replies.Consumed, _peek),
        ("queue.stats", requests.QueueRequest, replies.Stats, _stats),
        ("queue.consumers", requests.ListConsumers, replies.Consumers, _consumers),
        ("queue.purge", requests.QueueRequest, replies.Purged, _purge),
        ("queue.pause", requests.QueueRequest, replies.Done, _pause),
        ("queue.resume", requests.QueueRequest, replies.Done, _resume),
        ("queue.dead_letters dlq.list", requests.DeadLetters, replies.DeadLettersReply, _dead_letters),
        ("queue.retry_dead_letter dlq.retry", requests.DeadLetterRequest, replies.Done, _retry),
        ("queue.redrive dlq.redrive", requests.Redrive, replies.Redriven, _redrive),
        ("queue.purge_dead_letters dlq.purge", requests.QueueRequest, replies.Purged, _purge_dead_letters),
        ("pubsub.publish", requests.TopicPublishRequest, replies.PublishedToTopic, _publish_to_topic),
        ("pubsub.topics pubsub.list", requests.NoFields, replies.TopicNames, _topics),
        ("stream.create stream.get_or_create", requests.NewRoom, replies.RoomCreated, _create_room),
        ("stream.delete", requests.Room, replies.Deleted, _delete_room),
        ("stream.list", requests.NoFields, replies.RoomNames, _rooms),
        ("stream.publish", requests.Event, replies.EventPublished, _publish_event),
        ("stream.consume stream.read", requests.ReadRoom, replies.Events, _read_room),
        ("stream.stats", requests.Room, replies.RoomStats, _room_stats),
    )
    for name in names.split()
}
