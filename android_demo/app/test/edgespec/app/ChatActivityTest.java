package edgespec.app;

import static org.junit.Assert.*;

import android.view.View;
import android.widget.EditText;
import android.widget.ScrollView;
import android.widget.TextView;
import edgespec.FakeServer;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Tests the unmodified app on a {@link Phone} made of fakes, with a server on this machine. */
public class ChatActivityTest {
    private static final String KEY = "sk-test-1234";
    private static final String QUESTION = "Say it twice";
    private static final String ANSWER = "The lamp is red. The lamp is on. The lamp is red. The lamp is on. Done";

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private FakeServer server;
    private Phone phone;

    @Before
    public void start() throws IOException {
        server = server(new FakeServer());
        phone = new Phone(new File("app/res"), folder.getRoot());
        View.fakeAnnounced.clear();
        phone.launch();
    }

    private static FakeServer server(FakeServer server) {
        server.key = KEY;
        server.delayMs = 2;
        server.answers.put(QUESTION, ANSWER);
        server.answers.put("And now?", "Now it is green.");
        return server;
    }

    @After
    public void stop() throws IOException {
        server.close();
    }

    private void untilShown(String part) {
        phone.until("\"" + part + "\" is shown", () -> phone.shows(part));
    }

    private void untilEnded() {
        phone.until("no answer is coming", () -> !phone.app.conversation.isAnswering());
    }

    private void untilIdle() {
        untilEnded();
        phone.until("the screen knows that no answer is coming", () -> phone.text(R.id.send).equals("Send"));
    }

    /** Asks the question and waits for the whole answer. */
    private void answered() {
        setServer(server.url(), KEY);
        answered(QUESTION, "Done");
    }

    private void ask(String question) {
        phone.write(R.id.message, question);
        phone.touch(R.id.send);
    }

    private void answered(String question, String answer) {
        ask(question);
        untilShown(answer);
        untilIdle();
    }

    /** Sends the question and waits until this much of the answer is on the screen. */
    private void begin(int verdicts, String shown) {
        setServer(server.url(), KEY);
        server.allowOnly(verdicts);
        ask(QUESTION);
        untilShown(shown);
    }

    private void finish() {
        server.allowAll();
        untilIdle();
        assertTrue(phone.texts().toString(), phone.shows(ANSWER));
    }

    private void setServer(String address, String key) {
        phone.menu(R.id.settings);
        phone.write(R.id.server, address);
        phone.write(R.id.key, key);
        phone.touch(R.id.save);
    }

    private Choices saved() {
        return Choices.load(phone.activity.getSharedPreferences("settings", 0));
    }

    // Sending and streaming

    @Test
    public void anAnswerStreams() {
        assertTrue(phone.shows("Ask something"));
        assertEquals("No answer yet", phone.text(R.id.figures));
        ask("   ");
        assertFalse("nothing is sent without a question", phone.app.conversation.isAnswering());
        begin(9, "The lamp");
        assertFalse(phone.shows("Done"));
        assertEquals("the line is empty for the next question", "", phone.text(R.id.message));
        assertEquals("Stop", phone.text(R.id.send));
        finish();
        assertFalse("nothing else is said", phone.shows("Stopped"));
        String figures = phone.text(R.id.figures);
        assertTrue(figures, figures.matches(
                "[0-9.]+ tokens/s · [0-9]+% of [1-9][0-9]* drafted tokens accepted · round trip [0-9]+ ms"));
    }

    @Test
    public void acceptedDraftsHaveAnotherShadeOnDemand() {
        answered();
        assertEquals("", phone.shaded());
        phone.menu(R.id.show_drafts);
        String first = phone.shaded();
        assertTrue("what is said twice is drafted: " + first, first.contains("lamp is"));
        assertFalse("what nobody could know is not: " + first, first.contains("Done"));
        phone.rotate();
        assertEquals("the choice is kept", first, phone.shaded());
        phone.menu(R.id.show_drafts);
        assertEquals("", phone.shaded());
    }

    @Test
    public void theEndIsFollowedUnlessSomebodyReadsAbove() {
        answered();
        ScrollView scroll = (ScrollView) phone.views().stream().filter(ScrollView.class::isInstance).findAny().get();
        scroll.fakeHeight = 500;
        phone.find(R.id.entries).fakeHeight = 2000;
        answered(QUESTION, ANSWER);
        assertEquals(2000, scroll.getScrollY());
        server.allowOnly(8);
        ask("And now?");
        untilShown("Now it");
        scroll.scrollTo(0, 10);
        server.allowAll();
        untilShown("Now it is green.");
        untilIdle();
        assertEquals(10, scroll.getScrollY());
    }

    @Test
    public void aNewConversationForgetsTheOld() {
        begin(9, "The lamp");
        phone.menu(R.id.new_conversation);
        untilShown("Ask something");
        assertFalse(phone.shows("lamp"));
        server.allowAll();
        answered("And now?", "Now it is green.");
        assertFalse(phone.shows("lamp"));
        assertEquals("user: And now?\n", server.prompts.get(server.prompts.size() - 1));
        assertFalse(phone.app.fakeServices.contains("AnswerService"));
    }

    @Test
    public void stopKeepsWhatWasSaid() {
        begin(9, "The lamp");
        phone.touch(R.id.send);
        untilIdle();
        assertTrue(phone.shows("The lamp"));
        assertTrue(phone.shows("Stopped."));
        server.allowAll();
        answered("And now?", "Now it is green.");
        assertEquals("it was not waited for until it counted as lost", 1, server.connections());
    }

    // Rotation, background, the end of the process

    @Test
    public void turningThePhoneLosesNothing() {
        begin(9, "The lamp");
        phone.write(R.id.message, "half a quest");
        ChatActivity before = phone.activity;
        phone.rotate();
        assertNotSame(before, phone.activity);
        assertTrue(phone.shows(QUESTION));
        assertTrue(phone.shows("The lamp"));
        assertEquals("Stop", phone.text(R.id.send));
        assertEquals("half a quest", phone.text(R.id.message));
        finish();
    }

    @Test
    public void theAnswerGoesOnInTheBackground() {
        begin(9, "The lamp");
        assertTrue(phone.app.fakeServices.contains("AnswerService"));
        phone.activity.fakeStop();
        server.allowAll();
        untilEnded();
        assertFalse("nobody draws on a screen that is not seen", phone.shows("Done"));
        assertFalse("the service ends with the answer", phone.app.fakeServices.contains("AnswerService"));
        phone.activity.fakeStart();
        assertTrue(phone.shows(ANSWER));
    }

    @Test
    public void aConversationOutlivesTheProcess() {
        answered();
        phone.menu(R.id.show_drafts);
        String drafted = phone.shaded();
        phone.endProcess();
        assertTrue(phone.shows(QUESTION));
        assertTrue(phone.shows(ANSWER));
        assertEquals(drafted, phone.shaded());
        answered("And now?", "Now it is green.");
        assertEquals("user: " + QUESTION + "\nassistant: " + ANSWER + "\nuser: And now?\n", server.prompts.get(1));
        assertEquals(server.url(), saved().server);
        assertEquals(KEY, saved().key);
        phone.menu(R.id.new_conversation);
        untilShown("Ask something");
        begin(9, "The lamp");
        phone.endProcess();
        assertTrue(phone.shows("The lamp"));
        assertTrue(phone.shows("Android ended the app before this answer was complete."));
        assertEquals("Send", phone.text(R.id.send));
    }

    @Test
    public void aDamagedFileIsSaidAndDoesNoHarm() throws IOException {
        for (String damaged : List.of("", "{", "[]", "{\"entries\": [{}]}", "{\"entries\": [], \"answering\": 5}")) {
            phone.activity.fakeStop();
            Files.writeString(new File(folder.getRoot(), "conversation").toPath(), damaged);
            phone.startApp();
            phone.launch();
            assertTrue(phone.shows("The saved conversation could not be read"));
        }
        answered();
    }

    @Test
    public void aFullDiskIsSaidOnceAndTheAnswerComes() {
        assertTrue(new File(folder.getRoot(), "conversation.new").mkdir());
        begin(9, "The lamp");
        phone.activity.fakeStop();
        phone.activity.fakeStart();
        finish();
        phone.activity.fakeStop();
        phone.activity.fakeStart();
        assertEquals(1, phone.texts().stream().filter(text -> text.contains("could not be saved")).count());
    }

    // Errors

    @Test
    public void errorsSayWhatToDo() throws IOException {
        ask(QUESTION);
        untilShown("in the settings");
        untilIdle();
        setServer(server.url(), "sk-wrong");
        answered(QUESTION, "refuses the key");
        assertFalse(phone.shows("sk-wrong"));
        setServer(server.url(), KEY);
        answered(QUESTION, ANSWER);
        server.close();
        setServer(server.url(), KEY + "2");
        answered("And now?", "No verification server answers at " + server.name());
        assertEquals("No answer yet", phone.text(R.id.figures));
    }

    @Test
    public void aServerThatDiesLeavesWhatItSaid() throws IOException {
        begin(12, "The lamp is");
        server.close();
        untilIdle();
        assertTrue(phone.shows("The lamp is"));
        assertTrue(phone.texts().toString(), phone.shows(server.name()));
        server = server(server.again());
        answered("And now?", "Now it is green.");
    }

    // Settings

    @Test
    public void backLeavesTheSettingsAsTheyWere() {
        setServer(server.url(), KEY);
        phone.menu(R.id.settings);
        assertTrue("the key is not read over a shoulder", ((EditText) phone.find(R.id.key)).fakeIsPassword);
        phone.write(R.id.server, "wss://elsewhere:1");
        phone.rotate();
        assertEquals("Settings", phone.activity.fakeTitle);
        assertEquals("half-written settings survive turning", "wss://elsewhere:1", phone.text(R.id.server));
        phone.activity.onBackPressed();
        assertFalse(phone.activity.fakeFinished);
        assertEquals("edgespec demo", phone.activity.fakeTitle);
        phone.menu(R.id.settings);
        assertEquals(server.url(), phone.text(R.id.server));
        phone.activity.onBackPressed();
        phone.activity.onBackPressed();
        assertTrue("from the conversation back leaves the app", phone.activity.fakeFinished);
    }

    @Test
    public void anUnencryptedConnectionIsTheUsersChoice() {
        setServer("ws://192.168.1.20:8080", KEY);
        assertEquals("Settings", phone.activity.fakeTitle);
        assertTrue(phone.text(R.id.refusal), phone.text(R.id.refusal).contains("would not be encrypted"));
        assertEquals("", saved().server);
        phone.find(R.id.cleartext).fakeClick();
        phone.touch(R.id.save);
        assertEquals("edgespec demo", phone.activity.fakeTitle);
        assertTrue(saved().cleartext);
    }

    @Test
    public void addresses() {
        for (String good : List.of("", "wss://big:8080", "https://big", "ws://127.0.0.1:8080",
                "ws://localhost:8080", "ws://[::1]:8080", "WSS://big:8080/v1/verify", " wss://big ")) {
            assertEquals(good, null, new Choices(good, "", false, "").refusal());
        }
        for (String bad : List.of("big:8080", "ws://big:8080", "http://big", "ws://127.0.0.1.evil.org",
                "ws://localhost.evil.org")) {
            String refusal = new Choices(bad, "", false, "").refusal();
            assertTrue(bad, refusal != null && refusal.endsWith("."));
        }
    }

    // The model on the phone

    @Test
    public void aPickedModelIsCopied() throws IOException {
        byte[] content = Arrays.copyOf("GGUF and more".getBytes(), 3000000);
        content[2999999] = 7;
        Files.write(folder.newFile("some.gguf").toPath(), content);
        phone.pick(new File(folder.getRoot(), "some.gguf"));
        File copy = new File(folder.getRoot(), "model.gguf");
        phone.until("the field names the copy", () -> phone.text(R.id.model).equals(copy.getPath()));
        assertArrayEquals(content, Files.readAllBytes(copy.toPath()));
        assertEquals(copy.getPath(), saved().model);
    }

    @Test
    public void otherFilesAreNotTaken() throws IOException {
        Files.write(folder.newFile("some.gguf").toPath(), "GGML is another format".getBytes());
        phone.pick(new File(folder.getRoot(), "some.gguf"));
        phone.until("the copy has ended", () -> phone.app.modelFile.state().contains("not a GGUF file"));
        phone.pick(new File(folder.getRoot(), "gone.gguf"));
        phone.until("the copy has ended", () -> phone.app.modelFile.state().contains("could not be copied"));
        assertEquals("", phone.text(R.id.model));
        assertFalse(new File(folder.getRoot(), "model.gguf").exists());
        phone.activity.fakeHasPicker = false;
        phone.touch(R.id.choose);
        assertTrue(phone.text(R.id.refusal).contains("give the path"));
    }

    @Test
    public void aModelThatCannotRunIsANoteAndTheServerAnswers() {
        phone.menu(R.id.settings);
        assertTrue(phone.text(R.id.model_state).contains("No model can run on this device"));
        phone.write(R.id.model, new File(folder.getRoot(), "model.gguf").getPath());
        phone.touch(R.id.save);
        answered();
        assertTrue(phone.shows("No model can run on this device"));
    }

    // Accessibility

    @Test
    public void aScreenReaderHearsSentencesNotTokens() {
        answered();
        for (String piece : View.fakeAnnounced) {
            assertTrue(piece, piece.endsWith(".") || piece.endsWith("Done"));
        }
        assertEquals("all of it, once", ANSWER, String.join(" ", View.fakeAnnounced));
        View.fakeAnnounced.clear();
        phone.rotate();
        assertTrue("not again after turning", View.fakeAnnounced.isEmpty());
        setServer("ws://127.0.0.1:1", KEY);
        ask("And now?");
        untilIdle();
        assertTrue(View.fakeAnnounced.toString(), View.fakeAnnounced.toString().contains("127.0.0.1:1"));
    }

    @Test
    public void everythingHasANameAndTheSizeOfAFinger() {
        answered();
        assertAccessible();
        for (String name : List.of("You said: " + QUESTION, "Answer: " + ANSWER)) {
            assertTrue(name, phone.views().stream().anyMatch(view -> name.equals(view.fakeDescription)));
        }
        phone.menu(R.id.settings);
        assertAccessible();
    }

    private void assertAccessible() {
        List<Integer> labelled = new ArrayList<>();
        for (View view : phone.views()) {
            labelled.add(view instanceof TextView text ? text.fakeLabelFor : 0);
        }
        for (View view : phone.views()) {
            boolean field = view instanceof EditText;
            if (field || view.fakeIsTouchable()) {
                String name = view + " of id " + view.fakeId;
                assertTrue(name, view.fakeMinimumWidth >= 96 && view.fakeMinimumHeight >= 96);
                assertTrue(name, field ? !((EditText) view).fakeHint.isEmpty() || labelled.contains(view.fakeId)
                        : !((TextView) view).fakeText.toString().isEmpty());
            }
        }
    }

    @Test
    public void bothThemesCanBeRead() {
        for (boolean dark : new boolean[] {false, true}) {
            phone.setNight(dark);
            for (int color : new int[] {R.color.text, R.color.quiet, R.color.accepted, R.color.error}) {
                assertContrast(phone.app.getColor(color), phone.app.getColor(R.color.background));
            }
            assertContrast(phone.app.getColor(R.color.text), phone.app.getColor(R.color.question));
            assertContrast(0xFFFFFFFF, phone.app.getColor(R.color.bar));
        }
    }

    /** Checks the contrast of WCAG 2.1, which demands at least 4.5 to 1 for text. */
    private static void assertContrast(int one, int other) {
        double a = luminance(one) + 0.05;
        double b = luminance(other) + 0.05;
        String pair = String.format("%06x on %06x", one & 0xFFFFFF, other & 0xFFFFFF);
        assertTrue(pair, Math.max(a, b) / Math.min(a, b) >= 4.5);
    }

    private static double luminance(int color) {
        return 0.2126 * linear(color >> 16) + 0.7152 * linear(color >> 8) + 0.0722 * linear(color);
    }

    private static double linear(int channel) {
        double value = (channel & 255) / 255.0;
        return value <= 0.04045 ? value / 12.92 : Math.pow((value + 0.055) / 1.055, 2.4);
    }
}
