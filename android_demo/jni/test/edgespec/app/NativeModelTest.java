package edgespec.app;

import static org.junit.Assert.*;

import edgespec.Chat;
import edgespec.Listener;
import edgespec.Message;
import edgespec.Settings;
import edgespec.Stats;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.After;
import org.junit.Test;

/**
 * Tests NativeModel and the shim in a real Java machine, with Python's llama.cpp for this machine.
 * jni/test.sh runs it with -Xcheck:jni and passes Python's results for the same file as properties.
 */
public class NativeModelTest {
    private static final File FILE = new File(System.getProperty("model"));

    private NativeModel model;

    private NativeModel opened() throws IOException {
        model = NativeModel.open(FILE, 512, 1, NativeModel.F32, NativeModel.F32, false);
        return model;
    }

    @After
    public void close() {
        if (model != null) {
            model.close();
        }
    }

    private static Message message(String role, String content) {
        return new Message(role, content);
    }

    private static int[] ids(String property) {
        String[] words = System.getProperty(property).split(",");
        int[] ids = new int[words.length];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = Integer.parseInt(words[i]);
        }
        return ids;
    }

    @Test
    public void answersAsPython() throws IOException {
        assertNull(NativeModel.unavailable());
        opened();
        int[] prompt = model.encodeChat(Arrays.asList(
                message("system", "You are a helpful assistant."),
                message("user", "Grüße! 🙂 What is the capital of France?")));
        assertArrayEquals(ids("prompt"), prompt);
        int[] expected = ids("answer");
        int[] answer = new int[expected.length];
        int[] next = model.decode(prompt, 1);
        for (int i = 0; i < answer.length; i++) {
            answer[i] = next[0];
            next = model.decode(next, 1);
        }
        assertArrayEquals(expected, answer);
        assertEquals(prompt.length + answer.length, model.nPast());
        model.truncate(prompt.length);
        assertEquals(prompt.length, model.nPast());
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        for (int id : answer) {
            text.write(model.piece(id));
        }
        assertTrue(text.toString("UTF-8"), text.toString("UTF-8").contains("Paris"));
    }

    @Test
    public void aConversationWithoutSystemMessageGetsTheTemplatesOwn() throws IOException {
        opened();
        assertArrayEquals(ids("bare"), model.encodeChat(Arrays.asList(message("user", "Why?"))));
        assertEquals("You are Qwen.", NativeModel.defaultSystem(
                "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- messages[0].content }}{%- else %}"
                        + "{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}{%- endif %}"));
        assertNull(NativeModel.defaultSystem(
                "{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"));
        assertNull(NativeModel.defaultSystem(""));
    }

    @Test
    public void theVocabularyIsPythons() throws IOException {
        opened();
        StringBuilder hex = new StringBuilder();
        for (byte b : model.vocabularyHash()) {
            hex.append(String.format("%02x", b));
        }
        assertEquals(System.getProperty("hash"), hex.toString());
        assertEquals(Integer.parseInt(System.getProperty("size")), model.vocabularySize());
        assertEquals(512, model.contextSize());
        assertTrue(model.isEnd(model.encode("<|im_end|>", false)[0]));
        assertFalse(model.isEnd(model.encode("Hello", false)[0]));
        assertEquals("smollm2-135m", model.name());
    }

    @Test
    public void chatAnswersWithItAloneAndAfterAStop() throws IOException {
        Settings settings = new Settings();
        settings.model = opened();
        settings.maxTokens = 40;
        final Chat chat = new Chat(settings);
        final StringBuilder heard = new StringBuilder();
        final AtomicBoolean stopping = new AtomicBoolean();
        Listener listener = new Listener() {
            @Override
            public void onText(String text, boolean drafted) {
                heard.append(text);
                if (stopping.get()) {
                    chat.cancel();
                }
            }

            @Override
            public void onNote(String sentence) {
                heard.append("NOTE ").append(sentence);
            }

            @Override
            public void onStats(Stats stats) {}

            @Override
            public void onError(String sentence) {
                heard.append("ERROR ").append(sentence);
            }
        };
        List<Message> conversation = new ArrayList<>();
        conversation.add(message("user", "Name the capital of France."));
        Stats stats = chat.send(conversation, listener);
        assertEquals(heard.toString(), "stop", stats.finishReason);
        assertEquals("device", stats.source);
        assertEquals("The capital of France is Paris.", heard.toString());
        stopping.set(true);
        conversation.add(message("assistant", heard.toString()));
        conversation.add(message("user", "Tell me more about it."));
        assertEquals("cancelled", chat.send(conversation, listener).finishReason);
        stopping.set(false);
        assertFalse(chat.send(conversation, listener).finishReason.equals("error"));
        assertFalse(heard.toString(), heard.toString().matches("(?s).*(NOTE|ERROR).*"));
        chat.close();
    }

    @Test
    public void aZeroInATextDoesNotCutIt() throws IOException {
        opened();
        int[] with = model.encodeChat(Arrays.asList(message("user", "before\0behind")));
        int[] without = model.encodeChat(Arrays.asList(message("user", "before\ufffdbehind")));
        assertArrayEquals(without, with);
    }

    @Test
    public void theOrdinarySettingsWork() throws IOException {
        model = NativeModel.open(FILE, 256);
        assertEquals(1, model.decode(model.encode("Hello", true), 1).length);
    }

    @Test
    public void cancelStopsADecodeOfAnotherThread() throws Exception {
        opened();
        final AtomicReference<Exception> thrown = new AtomicReference<Exception>();
        final AtomicBoolean done = new AtomicBoolean();
        Thread worker = new Thread(() -> {
            try {
                model.decode(new int[500], 1);
            } catch (IOException e) {
                thrown.set(e);
            }
            done.set(true);
        });
        worker.start();
        while (!done.get()) {
            model.cancel();
            Thread.yield();
        }
        worker.join();
        assertSame(InterruptedIOException.class, thrown.get().getClass());
        assertEquals(0, model.nPast());
        assertEquals(1, model.decode(new int[] {5}, 1).length);
    }

    @Test
    public void closeStopsADecodeAndWhatComesLaterSaysSo() throws Exception {
        opened();
        final AtomicReference<Exception> thrown = new AtomicReference<Exception>();
        Thread worker = new Thread(() -> {
            try {
                while (true) {
                    model.decode(new int[100], 1);
                    model.truncate(0);
                }
            } catch (Exception e) {
                thrown.set(e);
            }
        });
        worker.start();
        model.close();
        worker.join();
        assertTrue(
                String.valueOf(thrown.get()),
                thrown.get() instanceof InterruptedIOException
                        || thrown.get() instanceof IllegalStateException);
        model.close();
        model.cancel();
        try {
            model.nPast();
            fail("a closed model has a cache");
        } catch (IllegalStateException e) {
            assertEquals("the model is closed; open it again", e.getMessage());
        }
    }

    @Test
    public void badFilesAreSaid() throws IOException {
        File folder = new File(System.getProperty("folder"));
        assertSentence(new File(folder, "none.gguf"), "There is no file");
        File text = new File(folder, "text.gguf");
        Files.write(text.toPath(), "not a model".getBytes("UTF-8"));
        assertSentence(text, "text.gguf is not a GGUF, or damaged");
        File empty = new File(folder, "empty.gguf");
        Files.write(empty.toPath(), new byte[0]);
        assertSentence(empty, "empty.gguf is not a GGUF, or damaged");
        File magic = new File(folder, "größe.gguf");
        Files.write(magic.toPath(), "GGUF, and then nothing of it".getBytes("UTF-8"));
        assertSentence(magic, "größe.gguf: the engine cannot load it (");
    }

    private void assertSentence(File file, String beginning) {
        try {
            NativeModel.open(file, 256).close();
            fail(file + " was opened");
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().startsWith(beginning));
        }
    }
}
